"""Loss curves of runs as separate figures with a legend; the page shows the section of `hero report`."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hero_moe.analysis.drawing import Drawing
from hero_moe.report.figures import LineStyle, draw_advantages, draw_losses, new_figure
from hero_moe.report.sections import Comparison


def _legend(figure: Figure, names: Sequence[str], styles: Sequence[LineStyle]) -> None:
    handles = [Line2D([], [], **style.options()) for style in styles]
    columns = min(len(names), 4)
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)


def losses(shown: Comparison) -> Drawing:
    """Language-model losses of all runs over steps, with an inset of the last fifth."""
    figure, grid = new_figure(4.6, width=8.0)
    draw_losses(grid[0, 0], shown.runs, shown.styles)
    grid[0, 0].set_title("Training loss", loc="left")
    _legend(figure, shown.names, shown.styles)
    return Drawing("loss", figure, "Training loss over steps", "")


def advantages(shown: Comparison) -> Drawing | None:
    """Baseline's loss minus each run's over their common steps; None if there are none."""
    compared = [
        (name, style, diff)
        for name, style, diff in zip(shown.names, shown.styles, shown.differences)
        if diff is not None
    ]
    if not compared:
        return None
    names, styles, differences = zip(*compared)
    figure, grid = new_figure(4.0, width=8.0)
    draw_advantages(grid[0, 0], differences, styles)
    grid[0, 0].set_title(f"Loss advantage over {shown.baseline.name}, single runs", loc="left")
    _legend(figure, names, styles)
    return Drawing("loss-advantage", figure, "Loss advantage over the baseline at each step", "")


def loss_drawings(shown: Comparison) -> list[Drawing]:
    """The figures with available data."""
    return [drawing for drawing in (losses(shown), advantages(shown)) if drawing is not None]
