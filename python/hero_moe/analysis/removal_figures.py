"""Figures of removing one predecessor's contribution from the logits: all of it (raw), or that of the
centered block, which keeps the bias of each expert."""

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


CONTRIBUTION = {"raw": "contribution", "centered": "centered contribution"}


def removal(analysis: Analysis, data: Data, form: Form) -> Drawing:
    """Routing change next to D_{l,p}, KL of the router's probabilities, and a scatter plot of the first
    two."""
    figure, grid = new_figure(8.6, 2, 2)
    change, divergence = data.removal[form].routing_change, data.removal[form].routing_kl
    layer, predecessor, most = strongest(change)
    panels = (
        (grid[0, 0], analysis.coupling[form].dependency, "Greens", f"Dependency D, {form}", "dependency"),
        (grid[0, 1], change, "Purples", "Routing change without p", "fraction of chosen experts lost"),
        (grid[1, 0], divergence, "Oranges", "KL(Q ‖ Q without p)", "nats"),
    )
    for axes, table, colors, title, label in panels:
        top, share = float(np.nanmax(table)) or 1.0, table is change
        image = draw_pair_table(axes, table, analysis.model, colors, 0.0, top, percent=share)
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
    axes.set_ylabel("fraction of chosen experts lost without p")
    correlation = data.removal[form].rank_correlation
    words = f"{correlation:+.2f}".replace("-", "−") if np.isfinite(correlation) else "undefined"
    axes.set_title(f"Dependency and routing change: rank correlation {words}", loc="left")
    caption = (
        f"Effect of removing one predecessor's {CONTRIBUTION[form]} at one layer, with unchanged earlier "
        f"layers. The largest change is at layer {layer} without layer {predecessor}: {most:.1%} of the "
        "chosen experts are no longer chosen. Spearman's rank correlation of D with the routing change: "
        f"{words}.{hidden_pairs_note(analysis)}"
    )
    description = f"Routing change without a predecessor's {CONTRIBUTION[form]}"
    return Drawing(figure_name("removal", form), figure, description, caption, form)


def removal_loss(analysis: Analysis, data: Data, form: Form) -> Drawing | None:
    """Loss change per predecessor when removed from all later layers; None without a finite value."""
    predecessors, change = data.removal[form].predecessors, data.removal[form].loss_change
    if not np.isfinite(change).any():
        return None
    figure, grid = new_figure(3.2, width=7.2)
    axes = grid[0, 0]
    colors = [POSITIVE if value > 0 else NEGATIVE for value in change]
    axes.bar(predecessors, change, color=colors, width=0.75)
    axes.axhline(0.0, color="#000000", linewidth=1.0)
    layer_ticks(axes, analysis.model.layers)
    axes.set_xlim(0.4, analysis.model.layers + 0.6)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel(f"predecessor p whose {CONTRIBUTION[form]} is removed from all later layers")
    axes.set_ylabel("loss change\n(nats per token)")
    axes.set_title(f"Loss without one predecessor (with all: {data.loss:.4g})", loc="left")
    worst = int(np.nanargmax(change))
    caption = (
        "Language-model loss without the predecessor minus the loss of the full model: positive values mean "
        f"that the predecessor helps. Largest for layer {predecessors[worst]}: "
        f"{signed(float(change[worst]))} nats per token."
    )
    description = f"Loss change without each predecessor's {CONTRIBUTION[form]}"
    return Drawing(figure_name("removal-loss", form), figure, description, caption, form)
