"""Figures of the history weights, raw and centered: layer dependency, expert coupling, effective rank.

The paper's Findings, its appendix "More Expert-level Samples" and its statistical details describe the raw
ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from hero_moe.analysis.contents import FORMS, Analysis, Form, LayerPair
from hero_moe.analysis.drawing import Drawing, add_bar, draw_pair_table, expert_ticks, figure_name, pair_name
from hero_moe.analysis.strong_figures import bias, distances
from hero_moe.report.figures import new_figure
from hero_moe.report.routing_figures import label_outside

CLIPPED = 99.8  # percentile of |w| that bounds the colors


def symmetric_range(*arrays: np.ndarray) -> float:
    """The 99.8th percentile, linearly interpolated, of the absolute values of all `arrays`; 1 if it is 0."""
    absolute = np.concatenate([np.abs(array).ravel() for array in arrays]).astype(np.float64)
    return float(np.percentile(absolute, CLIPPED)) or 1.0


def adjacent_blocks(analysis: Analysis, form: Form) -> dict[LayerPair, np.ndarray]:
    """The blocks of adjacent layers, each times its depth factor, by ascending layer."""
    return {
        place: block * analysis.depth_factor[place]
        for place, block in analysis.coupling[form].blocks.items()
        if place[0] - place[1] == 1
    }


def strongest(table: np.ndarray) -> tuple[int, int, float]:
    """Layer, predecessor (both from 1) and value of the largest entry of a table [L, L]."""
    row, column = np.unravel_index(np.nanargmax(table), table.shape)
    return int(row) + 1, int(column) + 1, float(table[row, column])


def mean_by_distance(table: np.ndarray) -> dict[int, float]:
    """Means of the entries of a table [L, L] at each layer distance with entries."""
    diagonals = {distance: np.diagonal(table, -distance) for distance in range(1, len(table))}
    return {d: float(np.nanmean(values)) for d, values in diagonals.items() if np.isfinite(values).any()}


def hidden_pairs_note(analysis: Analysis) -> str:
    """Explains the gray cells of a pair table; empty if every layer sees all its predecessors."""
    model = analysis.model
    if int(analysis.visible.sum()) == model.layers * (model.layers - 1) // 2:
        return ""
    reasons = [f"the window is {model.window}"] if model.window else []
    if model.history == "stage" and len(set(model.stages)) > 1:
        reasons.append("history does not cross stages")
    return f" Gray: not visible{' (' + ', '.join(reasons) + ')' if reasons else ''}."


def _near_and_far(table: np.ndarray, form: str) -> str:
    means = mean_by_distance(table)
    near, far = min(means), max(means)
    text = f"Mean at layer distance {near}: {form.format(means[near])}"
    return f"{text}, at {far}: {form.format(means[far])}." if far > near else f"{text}."


def dependency(analysis: Analysis, form: Form) -> Drawing:
    """Heat map of D_{l,p}, darker where a layer depends more on a predecessor."""
    table = analysis.coupling[form].dependency
    figure, grid = new_figure(5.4, width=6.4)
    axes = grid[0, 0]
    layer, predecessor, value = strongest(table)
    image = draw_pair_table(axes, table, analysis.model, "Greens", 0.0, value or 1.0)
    factor = " · √((l−1)/M)" if analysis.model.scale else ""
    add_bar(figure, image, axes, f"dependency ‖W‖{factor}")
    axes.set_title(f"Dependency of each layer's router on its predecessors, {form} weights", loc="left")
    caption = (
        f"Frobenius norm of the {form} weight block from layer p to layer "
        f"l{', times √((l−1)/M_l)' * bool(factor)}. "
        f"Strongest: {pair_name(layer, predecessor)}, {value:.3g}. "
        f"{_near_and_far(table, '{:.3g}')}"
        f"{hidden_pairs_note(analysis)}"
    )
    if len(set(analysis.model.stages)) > 1:
        caption += " Squares mark stages."
    description = f"Dependency of layers on preceding layers, {form} weights"
    return Drawing(figure_name("layer-dependency", form), figure, description, caption, form)


def matrix(analysis: Analysis, form: Form) -> Drawing:
    """The block of the default pair: source experts as columns, target experts as rows; red positive, blue
    negative."""
    pair = analysis.default_pair
    assert pair, "drawn only with a visible pair"
    layer, predecessor = pair
    block = analysis.coupling[form].blocks[pair]
    limit = symmetric_range(block)
    figure, grid = new_figure(5.4, width=6.4)
    axes = grid[0, 0]
    axes.grid(False)
    image = axes.imshow(block, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="none")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(expert_ticks(len(block), 8))
    axes.set_xlabel(f"source expert, layer {predecessor}")
    axes.set_ylabel(f"target expert, layer {layer}")
    description = f"Coupling of experts, {pair_name(layer, predecessor)}, {form} weights"
    axes.set_title(description, loc="left")
    add_bar(figure, image, axes, f"{form} weight", extend="both")
    target, source = np.unravel_index(np.argmax(np.abs(block)), block.shape)
    caption = (
        f"{form.capitalize()} weights. Red: a high probability of the source expert raises the target "
        f"expert's logit; blue: lowers it. Color range ±{limit:.3g}, the {CLIPPED}th percentile of the "
        f"magnitudes. {np.mean(block < 0):.1%} of the weights are negative; the largest in magnitude is "
        f"{block[target, source]:+.3g}, from expert {source} to expert {target}."
    )
    return Drawing(figure_name("coupling-matrix", form), figure, description, caption, form)


def fitting_columns(count: int) -> int:
    """Panels per row: all if at most five, else the number from five to seven that leaves the fewest empty
    places."""
    return count if count <= 5 else max((5, 6, 7), key=lambda columns: (-(-count % columns), columns))


def adjacent(analysis: Analysis, form: Form) -> Drawing | None:
    """All pairs of adjacent layers, blocks times their depth factors, on one color range; None without
    pairs."""
    blocks = adjacent_blocks(analysis, form)
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
    label = f"{form} weight{' · √((l−1)/M)' * scaled}, color range ±{limit:.3g}"
    add_bar(figure, image, grid, label, location="bottom", extend="both", aspect=50, shrink=0.5, pad=0.02)
    caption = (
        f"{form.capitalize()} blocks of all visible adjacent layer pairs, source → "
        f"target{', times √((l−1)/M_l)' * scaled}. "
        f"Shared color range ±{limit:.3g}, the {CLIPPED}th percentile of the absolute values."
    )
    description = f"Coupling of experts of all adjacent layers, {form} weights"
    return Drawing(figure_name("coupling-adjacent", form), figure, description, caption, form)


def effective_ranks(analysis: Analysis, form: Form) -> Drawing:
    """Heat map of the blocks' effective ranks."""
    table = analysis.coupling[form].effective_rank
    figure, grid = new_figure(5.4, width=6.4)
    axes = grid[0, 0]
    low, high = float(np.nanmin(table)), float(np.nanmax(table))
    margin = 0.0 if high > low else 0.5
    image = draw_pair_table(axes, table, analysis.model, "YlOrBr", low - margin, high + margin)
    add_bar(figure, image, axes, f"effective rank, at most {analysis.model.experts}")
    axes.set_title(f"Effective rank of the {form} blocks", loc="left")
    layer, predecessor, value = strongest(-table)
    caption = (
        f"Exponential of the entropy of a {form} block's normalized singular values (Roy and Vetterli 2007). "
        f"Minimum: {pair_name(layer, predecessor)}, {-value:.1f} of "
        f"{analysis.model.experts}; "
        f"mean {np.nanmean(table):.1f}. {_near_and_far(table, '{:.1f}')}{hidden_pairs_note(analysis)}"
    )
    description = f"Effective rank of {form} blocks"
    return Drawing(figure_name("effective-rank", form), figure, description, caption, form)


def weight_drawings(analysis: Analysis) -> list[Drawing]:
    """All weight figures in page order; none without visible pairs."""
    if not analysis.depth_factor:
        return []

    def both(build: Callable[[Analysis, Form], Drawing | None]) -> list[Drawing | None]:
        return [build(analysis, form) for form in FORMS]

    drawn = [*both(dependency), distances(analysis), bias(analysis)]
    drawn += [drawing for build in (matrix, adjacent, effective_ranks) for drawing in both(build)]
    return [drawing for drawing in drawn if drawing is not None]
