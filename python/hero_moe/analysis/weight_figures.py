"""Figures of the history weights: dependency between layers, coupling between experts, effective rank.

The paper's Findings, its appendix "More Expert-level Samples" and its statistical details describe the first
four.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from hero_moe.analysis.contents import Analysis, Distance, Place, StrongCoupling
from hero_moe.analysis.drawing import (
    NEGATIVE,
    POSITIVE,
    Drawing,
    add_bar,
    draw_pair_table,
    expert_ticks,
    layer_ticks,
    level_line,
    pair_name,
)
from hero_moe.figures import new_figure
from hero_moe.routing_figures import label_outside

CLIPPED = 99.8  # percentile of |w| that bounds the colours


def symmetric_range(*arrays: np.ndarray) -> float:
    """The 99.8th percentile, linearly interpolated, of the absolute values of all `arrays`; 1 where it is
    0."""
    absolute = np.concatenate([np.abs(array).ravel() for array in arrays]).astype(np.float64)
    return float(np.percentile(absolute, CLIPPED)) or 1.0


def adjacent_blocks(analysis: Analysis) -> dict[Place, np.ndarray]:
    """The blocks of neighbouring layers, each times its depth factor, by ascending layer."""
    return {
        place: block * analysis.pairs[place].depth_factor
        for place, block in analysis.blocks.items()
        if place[0] - place[1] == 1
    }


def strongest(table: np.ndarray) -> tuple[int, int, float]:
    """Layer, predecessor (both from 1) and value of the largest entry of a table [L, L]."""
    row, column = np.unravel_index(np.nanargmax(table), table.shape)
    return int(row) + 1, int(column) + 1, float(table[row, column])


def mean_by_distance(table: np.ndarray) -> dict[int, float]:
    """Means of the entries of a table [L, L] at each layer distance that has any."""
    diagonals = {distance: np.diagonal(table, -distance) for distance in range(1, len(table))}
    return {d: float(np.nanmean(values)) for d, values in diagonals.items() if np.isfinite(values).any()}


def hidden_pairs_note(analysis: Analysis) -> str:
    """What the grey cells of a table of pairs are; empty where every layer sees all before it."""
    model = analysis.model
    if int(analysis.visible.sum()) == model.layers * (model.layers - 1) // 2:
        return ""
    reasons = [f"the window is {model.window}"] if model.window else []
    if model.history == "stage" and len(set(model.stages)) > 1:
        reasons.append("history ends at the border of a stage")
    return f" Grey: not seen{' (' + ', '.join(reasons) + ')' if reasons else ''}."


def _near_and_far(table: np.ndarray, form: str) -> str:
    means = mean_by_distance(table)
    near, far = min(means), max(means)
    text = f"Mean of layers {near} apart: {form.format(means[near])}"
    return f"{text}, {far} apart: {form.format(means[far])}." if far > near else f"{text}."


def dependency(analysis: Analysis) -> Drawing:
    """Heat map of D_{l,p}, darker where a layer depends more on a predecessor."""
    figure, grid = new_figure(5.4, width=6.4)
    axes = grid[0, 0]
    layer, predecessor, value = strongest(analysis.dependency)
    image = draw_pair_table(axes, analysis.dependency, analysis.model, "Greens", 0.0, value or 1.0)
    factor = " · √((l−1)/M)" if analysis.model.scale else ""
    add_bar(figure, image, axes, f"dependency ‖W‖{factor}")
    axes.set_title("Dependency of each layer's router on the layers before it", loc="left")
    caption = (
        f"Frobenius norm of the block of weights from layer p to layer "
        f"l{', times √((l−1)/M_l)' * bool(factor)}. "
        f"Strongest: {pair_name(layer, predecessor)}, {value:.3g}. "
        f"{_near_and_far(analysis.dependency, '{:.3g}')}"
        f"{hidden_pairs_note(analysis)}"
    )
    if len(set(analysis.model.stages)) > 1:
        caption += " Squares are pipeline stages."
    return Drawing("layer-dependency", figure, "Dependency of layers on preceding layers", caption)


def distances(analysis: Analysis) -> Drawing:
    """Stacked bars: percent of strongly negative and strongly positive entries at each layer distance; raw, and
    less what the softmax does not see."""
    figure, grid = new_figure(3.6, columns=2)
    raw, centred = analysis.strong, analysis.centred
    _strong_bars(grid[0, 0], raw, "Raw weights w", "w")
    _strong_bars(grid[0, 1], centred, "Without each source expert's mean, w′", "w′")
    label_outside(grid, 2, "layer distance l − p", "part of all expert pairs")
    top = max(axes.get_ylim()[1] for axes in grid[0])
    for axes in grid[0]:
        axes.set_ylim(0, top)
    grid[0, 0].legend(ncols=2, frameon=False, loc="upper right", borderaxespad=0.0)
    most = max(raw.distances, key=_share)
    least = min(raw.distances, key=_share)
    caption = (
        f"Left: raw weights beyond τ, the 90th percentile of |w| over all blocks, so that a tenth of all weights "
        f"counts. Most at distance {most.distance}: {_share(most):.1f}% ({most.negative:.1f}% negative)"
    )
    if least is not most:
        caption += f"; least at {least.distance}: {_share(least):.1f}%"
    caption += (
        f". Right: the same of w′, the weights less their source expert's mean over the target experts. That mean "
        f"raises all logits alike and changes no choice, but moves the signs of w. Negative among the strong: "
        f"{_negative_part(raw):.0%} of w, {_negative_part(centred):.0%} of w′."
    )
    return Drawing("coupling-by-distance", figure, "Strong coupling by layer distance", caption)


def _share(entry: Distance) -> float:
    return entry.negative + entry.positive


def _negative_part(strong: StrongCoupling) -> float:
    """Of all entries beyond tau; 0 where there are none."""
    total = sum(_share(entry) * entry.entries for entry in strong.distances)
    negative = sum(entry.negative * entry.entries for entry in strong.distances)
    return negative / total if total else 0.0


def _strong_bars(axes: Axes, strong: StrongCoupling, title: str, symbol: str) -> None:
    x = [entry.distance for entry in strong.distances]
    negative = [entry.negative for entry in strong.distances]
    positive = [entry.positive for entry in strong.distances]
    axes.bar(x, negative, color=NEGATIVE, label="negative, below −τ", width=0.75)
    axes.bar(x, positive, bottom=negative, color=POSITIVE, label="positive, above τ", width=0.75)
    level_line(axes, 10.0, "all distances")
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    layer_ticks(axes, max(x))
    axes.set_xlim(0.4, max(x) + 0.6)
    axes.grid(axis="x", visible=False)
    axes.set_title(f"{title}: |{symbol}| > τ = {strong.tau:.3g}", loc="left")
    axes.set_ylim(0, 1.2 * max(*map(_share, strong.distances), 10.0))


def matrix(analysis: Analysis) -> Drawing:
    """The raw block of the default pair: source experts across, target experts down, red positive, blue
    negative."""
    layer, predecessor = analysis.default_pair
    block = analysis.blocks[analysis.default_pair]
    limit = symmetric_range(block)
    figure, grid = new_figure(5.4, width=6.4)
    axes = grid[0, 0]
    axes.grid(False)
    image = axes.imshow(block, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="none")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(expert_ticks(len(block), 8))
    axes.set_xlabel(f"source expert, layer {predecessor}")
    axes.set_ylabel(f"target expert, layer {layer}")
    axes.set_title(f"Coupling of experts, {pair_name(layer, predecessor)}", loc="left")
    add_bar(figure, image, axes, "weight", extend="both")
    target, source = np.unravel_index(np.argmax(np.abs(block)), block.shape)
    caption = (
        f"Raw weights; red: a likely source expert raises the target expert's logit, blue: it lowers it. "
        f"Colours end "
        f"at ±{limit:.3g}, the {CLIPPED}th percentile of |w|. {np.mean(block < 0):.1%} of the weights are "
        f"negative; "
        f"the largest is {block[target, source]:+.3g}, from expert {source} to expert {target}."
    )
    description = f"Coupling of experts, {pair_name(layer, predecessor)}"
    return Drawing("coupling-matrix", figure, description, caption)


def fitting_columns(count: int) -> int:
    """Panels in a row: all of up to five, else the one of five to seven that leaves least room empty."""
    return count if count <= 5 else max((5, 6, 7), key=lambda columns: (-(-count % columns), columns))


def adjacent(analysis: Analysis) -> Drawing | None:
    """All pairs of neighbouring layers, blocks times their depth factors, on one colour range; None without
    any."""
    blocks = adjacent_blocks(analysis)
    if not blocks:
        return None
    limit = symmetric_range(*blocks.values())
    columns = fitting_columns(len(blocks))
    rows = math.ceil(len(blocks) / columns)
    side = 9.3 / max(columns, 4)
    figure, grid = new_figure(1.2 + rows * (side + 0.2), rows, columns)
    panels = list(grid.ravel())
    for index, (axes, ((layer, predecessor), block)) in enumerate(zip(panels, blocks.items())):
        axes.grid(False)
        axes.spines[:].set_visible(False)
        image = axes.imshow(block, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="none")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(expert_ticks(len(block), 4))
        lowest = index + columns >= len(blocks)
        axes.tick_params(labelsize=7, labelleft=index % columns == 0, labelbottom=lowest)
        axes.set_title(f"{predecessor} → {layer}", fontsize=9, pad=3)
    for unused in panels[len(blocks) :]:
        unused.set_visible(False)
    label_outside(grid, len(blocks), "source expert", "target expert")
    scaled = analysis.model.scale
    label = f"weight{' · √((l−1)/M)' * scaled}, colours end at ±{limit:.3g}"
    add_bar(figure, image, grid, label, location="bottom", extend="both", aspect=50, shrink=0.5, pad=0.02)
    caption = (
        f"Blocks of all neighbouring layers that see each other, source → "
        f"target{', times √((l−1)/M_l)' * scaled}. "
        f"One colour range for all, ±{limit:.3g}: the {CLIPPED}th percentile of their absolute values."
    )
    return Drawing("coupling-adjacent", figure, "Coupling of experts of all neighbouring layers", caption)


def effective_ranks(analysis: Analysis) -> Drawing:
    """Heat map of the blocks' effective ranks."""
    table = analysis.by_pair({place: pair.effective_rank for place, pair in analysis.pairs.items()})
    figure, grid = new_figure(5.4, width=6.4)
    axes = grid[0, 0]
    low, high = float(np.nanmin(table)), float(np.nanmax(table))
    margin = 0.0 if high > low else 0.5
    image = draw_pair_table(axes, table, analysis.model, "YlOrBr", low - margin, high + margin)
    add_bar(figure, image, axes, f"effective rank, at most {analysis.model.experts}")
    axes.set_title("Effective rank of the blocks", loc="left")
    layer, predecessor, value = strongest(-table)
    caption = (
        "e to the entropy of a block's singular values divided by their sum (Roy and Vetterli 2007): how "
        "many "
        f"directions a block uses. Lowest: {pair_name(layer, predecessor)}, {-value:.1f} of "
        f"{analysis.model.experts}; "
        f"mean {np.nanmean(table):.1f}. {_near_and_far(table, '{:.1f}')}{hidden_pairs_note(analysis)}"
    )
    return Drawing("effective-rank", figure, "Effective rank of blocks", caption)


def weight_drawings(analysis: Analysis) -> list[Drawing]:
    """All figures of weights, in the page's order; none where no layer sees another."""
    if not analysis.pairs:
        return []
    drawn = [build(analysis) for build in (dependency, distances, matrix, adjacent, effective_ranks)]
    return [drawing for drawing in drawn if drawing is not None]
