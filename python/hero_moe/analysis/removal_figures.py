"""Figures of what happens when one predecessor's contribution is removed from the logits: all of it (raw), or that
of the centered block, so that the layer keeps its bias of each expert."""

from __future__ import annotations

import numpy as np
from matplotlib.ticker import MaxNLocator

from hero_moe.analysis.contents import Analysis, Data, Form
from hero_moe.analysis.drawing import (
    NEGATIVE,
    POSITIVE,
    Drawing,
    add_bar,
    draw_pair_table,
    figure_name,
    layer_ticks,
)
from hero_moe.analysis.weight_figures import hidden_pairs_note, strongest
from hero_moe.report.figures import new_figure, percent_ticks
from hero_moe.report.sections import signed


def dependency_against_change(
    analysis: Analysis, data: Data, form: Form
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """D_{l,p}, routing change and layer distance of every visible pair, each [pairs]."""
    layer, predecessor = np.nonzero(analysis.visible)
    place = (layer, predecessor)
    change = data.removal[form].routing_change
    return analysis.coupling[form].dependency[place], change[place], layer - predecessor


WHOLE = {"raw": "contribution", "centered": "centered contribution"}


def removal(analysis: Analysis, data: Data, form: Form) -> Drawing:
    """Change of routing beside D_{l,p}, KL of the router's probabilities, and a scatter of the first two."""
    figure, grid = new_figure(8.6, 2, 2)
    change, divergence = data.removal[form].routing_change, data.removal[form].routing_kl
    layer, predecessor, most = strongest(change)
    panels = (
        (grid[0, 0], analysis.coupling[form].dependency, "Greens", f"Dependency D, {form}", "dependency"),
        (grid[0, 1], change, "Purples", "Routing change without p", "part of choices lost"),
        (grid[1, 0], divergence, "Oranges", "KL(Q ‖ Q without p)", "nats"),
    )
    for axes, table, colours, title, label in panels:
        top, share = float(np.nanmax(table)) or 1.0, table is change
        image = draw_pair_table(axes, table, analysis.model, colours, 0.0, top, percent=share)
        axes.set_title(title, loc="left")
        add_bar(figure, image, axes, label, **({"format": percent_ticks(top)} if share else {}))
    x, y, distance = dependency_against_change(analysis, data, form)
    axes = grid[1, 1]
    far = max(2.0, float(distance.max()))
    points = axes.scatter(x, y, c=distance, cmap="viridis", s=22, vmin=1, vmax=1.12 * far, linewidths=0)
    bar = add_bar(figure, points, axes, "layer distance l − p")
    bar.ax.set_ylim(1, far)
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    axes.set_box_aspect(1)
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.05 * float(y.max()) or 1.0)
    axes.yaxis.set_major_formatter(percent_ticks(float(y.max())))
    axes.set_xlabel("dependency D")
    axes.set_ylabel("part of choices lost without p")
    correlation = data.removal[form].rank_correlation
    words = f"{correlation:+.2f}".replace("-", "−") if np.isfinite(correlation) else "undefined"
    axes.set_title(f"Dependency and routing change: rank correlation {words}", loc="left")
    caption = (
        f"One predecessor's {WHOLE[form]} removed at one layer, everything before that layer unchanged. Most choices "
        f"change at layer {layer} without layer {predecessor}: {most:.1%} of the chosen experts are no "
        f"longer chosen. "
        f"Spearman's correlation of D with it: {words}."
        f"{hidden_pairs_note(analysis)}"
    )
    description = f"Routing change without a predecessor's {WHOLE[form]}"
    return Drawing(figure_name("removal", form), figure, description, caption, form)


def removal_loss(analysis: Analysis, data: Data, form: Form) -> Drawing | None:
    """Loss change per predecessor that is removed from all later layers at once; None without a finite one."""
    predecessors, change = data.removal[form].predecessors, data.removal[form].loss_change
    if not np.isfinite(change).any():
        return None
    figure, grid = new_figure(3.2, width=7.2)
    axes = grid[0, 0]
    colours = [POSITIVE if value > 0 else NEGATIVE for value in change]
    axes.bar(predecessors, change, color=colours, width=0.75)
    axes.axhline(0.0, color="#000000", linewidth=1.0)
    layer_ticks(axes, analysis.model.layers)
    axes.set_xlim(0.4, analysis.model.layers + 0.6)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel(f"predecessor p, its {WHOLE[form]} removed from all later layers")
    axes.set_ylabel("change of the loss\n(nats per token)")
    axes.set_title(f"Loss without one predecessor (with all: {data.loss:.4g})", loc="left")
    worst = int(np.nanargmax(change))
    caption = (
        "Language-model loss of the whole forward pass, minus that of the model as it is: above zero the "
        "predecessor "
        f"helps. The most without layer {predecessors[worst]}: {signed(float(change[worst]))} nats per token."
    )
    description = f"Loss change without each predecessor's {WHOLE[form]}"
    return Drawing(figure_name("removal-loss", form), figure, description, caption, form)
