"""Routing figures: heat maps of expert shares on one color scale, and diagnostics of the routing history."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from hero_moe.report.comparison import bucket_means, layer_mean, mapped_peak
from hero_moe.report.figures import (
    ROUND_STEPS,
    LineStyle,
    draw_runs,
    new_figure,
    percent_ticks,
    step_axis,
    to_svg,
)
from hero_moe.report.run_files import Run

COLOR_MAP = "YlGnBu"
TIME_COLUMNS = 150


def short_name(name: str, length: int) -> str:
    """`name`, with its middle elided if it has more than `length` characters."""
    if len(name) <= length:
        return name
    tail = (length - 1) * 2 // 3
    return f"{name[: length - 1 - tail]}…{name[-tail:]}"


def panel_grid(count: int, layers: int) -> tuple[Figure, np.ndarray, list[Axes]]:
    """A figure with `count` panels in rows of at most four: figure, axes [rows, columns], panels in order."""
    columns = count if count <= 3 else (2 if count == 4 else min(4, count))
    rows = -(-count // columns)
    figure, grid = new_figure(rows * float(np.clip(0.8 + 0.2 * layers, 1.8, 4.5)), rows, columns)
    panels = list(grid.ravel())
    for unused in panels[count:]:
        unused.set_visible(False)
    return figure, grid, panels[:count]


def show_map(
    axes: Axes, values: np.ndarray, extent: tuple[float, float, float, float], top: float
) -> AxesImage:
    """Draws `values` [rows, columns], one row per layer with layer 1 on top; light gray for missing
    values."""
    axes.grid(False)
    axes.set_facecolor("#f4f4f4")
    image = axes.imshow(
        np.ma.masked_invalid(values),
        aspect="auto",
        interpolation="none",
        cmap=COLOR_MAP,
        vmin=0.0,
        vmax=top,
        extent=extent,
    )
    axes.yaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    axes.spines[:].set_visible(False)
    return image


def share_bar(figure: Figure, grid: np.ndarray, image: AxesImage, top: float, label: str) -> Colorbar:
    """The color bar of all panels, in percent up to `top`."""
    bar = figure.colorbar(image, ax=grid, format=percent_ticks(top), pad=0.015, aspect=30, fraction=0.03)
    bar.set_label(label)
    bar.outline.set_visible(False)
    return bar


def expert_figure(runs: Sequence[Run]) -> str:
    """Expert share [layers x experts], mean of the last snapshots of each run with snapshots; a circle marks
    the maximum."""
    mapped = [
        (run, run.routing, peak) for run in runs if run.routing and (peak := mapped_peak(run)) is not None
    ]
    top = max(peak.share for _, _, peak in mapped)
    figure, grid, panels = panel_grid(len(mapped), max(len(routing.share) for _, routing, _ in mapped))
    for axes, (run, routing, peak) in zip(panels, mapped):
        layers, experts = routing.share.shape
        image = show_map(axes, routing.share, (-0.5, experts - 0.5, layers + 0.5, 0.5), top)
        axes.plot(
            peak.expert,
            peak.layer,
            "o",
            markersize=8,
            markerfacecolor="none",
            markeredgecolor="#D55E00",
            markeredgewidth=1.4,
            clip_on=False,
        )
        title = short_name(run.name, 90 // grid.shape[1])
        axes.set_title(
            f"{title}\nmaximum {peak.share:.1%}: layer {peak.layer}, expert {peak.expert}", loc="left"
        )
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    label_outside(grid, len(mapped), "expert")
    bar = share_bar(figure, grid, image, top, "share of all tokens")
    for level in {run.uniform_share for run in runs}:
        if level is not None and level <= top:
            bar.ax.axhline(level, color="#000000", linewidth=1.2)
            bar.ax.annotate(
                "uniform",
                (0.0, level),
                xycoords=("axes fraction", "data"),
                xytext=(-3, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=7,
                rotation=90,
            )
    return to_svg(figure, "experts", "Share of all tokens per layer and expert")


def label_outside(grid: np.ndarray, count: int, label: str, left: str = "layer") -> None:
    """Puts `label` under the lowest panel of each column, and `left` to the left of each row."""
    rows, columns = grid.shape
    for index in range(count):
        row, column = divmod(index, columns)
        if index + columns >= count:
            grid[row, column].set_xlabel(label)
        if column == 0:
            grid[row, column].set_ylabel(left)


def rho_figure(runs: Sequence[Run], styles: Sequence[LineStyle]) -> str:
    """The history's scale rho over steps, mean over tokens and layers with visible history."""
    figure, grid = new_figure(2.8)
    axes = grid[0, 0]
    nothing = [np.full(len(run.metrics.steps), np.nan) for run in runs]
    means = [
        layer_mean(run.metrics.layers["rho"]) if "rho" in run.metrics.layers else gap
        for run, gap in zip(runs, nothing)
    ]
    draw_runs(axes, runs, styles, means)
    axes.set_ylabel("rho, mean over layers")
    return to_svg(figure, "rho", "Scale rho of the history over steps")


def history_share_figure(runs: Sequence[Run]) -> str:
    """The history's share of the logit variance, [layers x time] per run, on one color scale."""
    shares = [run.metrics.layers["history_variance_share"] for run in runs]
    means = [bucket_means(share, TIME_COLUMNS) for share in shares]
    top = max(float(np.nanmax(mean)) for mean in means) or 1.0
    figure, grid, panels = panel_grid(len(runs), max(share.shape[1] for share in shares))
    for axes, run, mean in zip(panels, runs, means):
        first, last = run.metrics.steps[0] - 0.5, run.metrics.steps[-1] + 0.5
        image = show_map(axes, mean.T, (first, last, mean.shape[1] + 0.5, 0.5), top)
        step_axis(axes, [])
        axes.set_xlabel("")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True, steps=ROUND_STEPS))
        axes.set_title(short_name(run.name, 90 // grid.shape[1]), loc="left")
    label_outside(grid, len(runs), "step")
    share_bar(figure, grid, image, top, "share of logit variance")
    return to_svg(figure, "history", "History's share of logit variance per layer over steps")
