"""Curves as inline SVG: one line style per run, thin raw curves behind smoothed ones.

Figures have no legend; the page draws one from `LineStyle`. Curves are downsampled to a few hundred points.
"""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from hero_moe.report.comparison import Difference, downsample, downsample_extremes, layer_mean, smooth
from hero_moe.report.run_files import Run

WIDTH = 10.0
GRAY = "#767676"
BASELINE_COLOR = "#000000"
COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)  # Okabe and Ito's, without yellow
DASHES = ((), (6, 2), (2, 1.5), (7, 2, 2, 2), (10, 3))
RAW_RUNS = 6
ROUND_STEPS = (1, 2, 2.5, 5, 10)
SMOOTHED, SMOOTHED_DIFFERENCE = 0.02, 0.05  # fraction of a run's records per mean
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hero-moe",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.5,
}
logging.getLogger("matplotlib").setLevel(logging.ERROR)


@dataclass(frozen=True)
class LineStyle:
    """Color and dashes (on, off, ... in points; empty for a solid line) of one run in every figure."""

    color: str
    dashes: tuple[float, ...]

    def options(self) -> dict[str, Any]:
        """Keyword arguments for `Axes.plot`."""
        return {"color": self.color, "dashes": self.dashes} if self.dashes else {"color": self.color}


def line_styles(runs: Sequence[Run], baseline: Run) -> list[LineStyle]:
    """Solid black for the baseline; different colors, then dashes, for the others."""
    styles, others = [], 0
    for run in runs:
        if run is baseline:
            styles.append(LineStyle(BASELINE_COLOR, ()))
        else:
            dashes = DASHES[others // len(COLORS) % len(DASHES)]
            styles.append(LineStyle(COLORS[others % len(COLORS)], dashes))
            others += 1
    return styles


def new_figure(
    height: float, rows: int = 1, columns: int = 1, width: float = WIDTH
) -> tuple[Figure, np.ndarray]:
    """A figure of `width`, by default the page's, and `height` in inches, and its axes as an array [rows,
    columns].

    Call it, and draw, inside `matplotlib.rc_context(STYLE)`.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def to_svg(figure: Figure, name: str, description: str) -> str:
    """Returns the figure as an `<svg>` element for HTML; see `inline_svg`."""
    return inline_svg(svg_text(figure), name, description)


def svg_text(figure: Figure) -> str:
    """Returns the figure as the text of an SVG file."""
    target = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # glyphs missing in the drawing font; the browser's font may have them
        figure.savefig(target, format="svg")
    return target.getvalue()


def inline_svg(svg: str, name: str, description: str) -> str:
    """An SVG file's text as an `<svg>` element for HTML; keeps only referenced ids, prefixed with `name`."""
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    box = svg.split('viewBox="', 1)[1].split('"', 1)[0]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->\n?", "", body, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(#|xlink:href="#)([^)"]+)', body))
    body = re.sub(
        r' id="([^"]*)"', lambda match: f' id="{name}-{match[1]}"' if match[1] in used else "", body
    )
    body = re.sub(r'(url\(#|xlink:href="#)', rf"\g<1>{name}-", body).replace("xlink:href", "href")
    return f'<svg viewBox="{box}" role="img" aria-label="{description}">{body.rstrip()}'


def step_axis(axes: Axes, steps: Sequence[np.ndarray]) -> None:
    """Labels the x axis in optimizer steps and fits it to all `steps`, with a margin."""
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=ROUND_STEPS))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    ends = [bound for step in steps if len(step) for bound in (step[0], step[-1])]
    if ends:
        margin = max(1.0, (max(ends) - min(ends)) * 0.01)
        axes.set_xlim(min(ends) - margin, max(ends) + margin)


def percent_ticks(top: float) -> PercentFormatter:
    """Tick labels in percent for an axis from 0 to `top`."""
    return PercentFormatter(xmax=1.0, decimals=0 if top >= 0.05 else 1)


def smoothing_window(count: int, part: float) -> int:
    """Number of records per mean: the fraction `part` of `count`, at least one."""
    return max(1, int(count * part))


def draw_curve(axes: Axes, x: np.ndarray, y: np.ndarray, style: LineStyle, part: float, curves: int) -> None:
    """Draws `y` smoothed over the fraction `part`, in front of the raw values if there are few `curves`."""
    limit = int(np.clip(6000 / max(1, curves), 150, 800))
    marker: dict[str, Any] = {"marker": "o", "markersize": 5} if np.isfinite(y).sum() < 3 else {}
    if curves <= RAW_RUNS:
        axes.plot(*downsample_extremes(x, y, 2 * limit), color=style.color, alpha=0.25, linewidth=0.6)
    axes.plot(*downsample(x, smooth(y, smoothing_window(len(y), part)), limit), **style.options(), **marker)


def draw_runs(
    axes: Axes, runs: Sequence[Run], styles: Sequence[LineStyle], values: Sequence[np.ndarray]
) -> None:
    """Draws one curve per run over its steps and labels the x axis; the baseline is on top."""
    for index in sorted(range(len(runs)), key=lambda i: styles[i].color == BASELINE_COLOR):
        draw_curve(axes, runs[index].metrics.steps, values[index], styles[index], SMOOTHED, len(runs))
    step_axis(axes, [run.metrics.steps for run in runs])


def loss_figure(runs: Sequence[Run], styles: Sequence[LineStyle]) -> str:
    """Language-model loss of all runs, with an inset of the last fifth of the longest run's steps."""
    figure, grid = new_figure(4.2)
    draw_losses(grid[0, 0], runs, styles)
    return to_svg(figure, "loss", "Language-model loss over steps")


def draw_losses(axes: Axes, runs: Sequence[Run], styles: Sequence[LineStyle]) -> None:
    """Draws the language-model losses with their inset."""
    losses = [run.metrics.scalars["lm_loss"] for run in runs]
    draw_runs(axes, runs, styles, losses)
    axes.set_ylabel("loss (nats per token)")
    last, first = max(run.metrics.steps[-1] for run in runs), min(run.metrics.steps[0] for run in runs)
    if last - first >= 20:
        draw_loss_inset(axes, runs, styles, losses, last - (last - first) / 5, last)


def make_room(axes: Axes, below: Sequence[np.ndarray], share: float) -> None:
    """Raises the upper end of the y axis until the values `below` an inset lie in the lower `share` of the
    axes.

    The axis gets at most twice as long, so that curves that hardly fall stay readable.
    """
    low, high = axes.get_ylim()
    top = max((float(np.nanmax(values)) for values in below if np.isfinite(values).any()), default=low)
    axes.set_ylim(low, min(max(high, low + (top - low) / share), 2 * high - low))


def draw_loss_inset(
    axes: Axes,
    runs: Sequence[Run],
    styles: Sequence[LineStyle],
    losses: Sequence[np.ndarray],
    begin: float,
    end: float,
) -> None:
    """Draws the smoothed losses from step `begin` to `end` in an inset at the upper right of `axes`, if there
    are any."""
    tails = []
    for run, loss in zip(runs, losses):
        late = run.metrics.steps >= begin
        tails.append((run.metrics.steps[late], smooth(loss, smoothing_window(len(loss), SMOOTHED))[late]))
    seen = np.concatenate([values[np.isfinite(values)] for _, values in tails])
    if len(seen) < 3:
        return
    middle = sum(axes.get_xlim()) / 2
    smoothed = [smooth(loss, smoothing_window(len(loss), SMOOTHED)) for loss in losses]
    make_room(axes, [loss[run.metrics.steps >= middle] for run, loss in zip(runs, smoothed)], 0.34)
    inset = axes.inset_axes((0.5, 0.42, 0.48, 0.52))
    for (steps, values), style in zip(tails, styles):
        inset.plot(*downsample(steps, values, 300), **style.options())
    margin = max(1e-3, 0.06 * float(np.ptp(seen)))
    inset.set_ylim(seen.min() - margin, seen.max() + margin)
    step_axis(inset, [np.array([begin, end])])
    inset.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=ROUND_STEPS))
    inset.set_xlabel("")
    inset.tick_params(labelsize=8)
    inset.set_title("last fifth of the steps", fontsize=8, loc="left", color="#444444")


def advantage_figure(differences: Sequence[Difference | None], styles: Sequence[LineStyle]) -> str:
    """Baseline's loss minus each run's on common steps; None for the baseline and runs without common
    steps."""
    figure, grid = new_figure(3.4)
    draw_advantages(grid[0, 0], differences, styles)
    return to_svg(figure, "advantage", "Loss advantage over the baseline over steps")


def draw_advantages(
    axes: Axes, differences: Sequence[Difference | None], styles: Sequence[LineStyle]
) -> None:
    """Draws the baseline's loss minus each run's, and a line at 0."""
    shown = [(diff, style) for diff, style in zip(differences, styles) if diff is not None]
    axes.axhline(0.0, color="#000000", linewidth=1.0)
    bounds = []
    for diff, style in shown:
        draw_curve(axes, diff.steps, -diff.values, style, SMOOTHED_DIFFERENCE, len(shown))
        smoothed = smooth(-diff.values, smoothing_window(len(diff.values), SMOOTHED_DIFFERENCE))
        settled = smoothed[len(smoothed) // 20 :]
        bounds += settled[np.isfinite(settled)].tolist()
        if len(shown) <= RAW_RUNS and np.isfinite(diff.values).any():
            bounds += np.nanpercentile(-diff.values, [2, 98]).tolist()
    if bounds and min(bounds) < max(bounds):
        low, high = min(0.0, *bounds), max(0.0, *bounds)
        axes.set_ylim(low - 0.08 * (high - low), high + 0.08 * (high - low))
    step_axis(axes, [diff.steps for diff, _ in shown])
    axes.set_ylabel("baseline − run\n(nats per token)")


def load_figure(runs: Sequence[Run], styles: Sequence[LineStyle]) -> str:
    """Busiest expert's share of all tokens (any layer) and router entropy (mean over layers) over steps."""
    figure, grid = new_figure(3.4, columns=2)
    share, entropy = grid[0]
    draw_runs(share, runs, styles, [run.metrics.scalars["max_expert_share"] for run in runs])
    for level in {run.uniform_share for run in runs} - {None}:
        share.axhline(level, color=GRAY, linestyle=":", linewidth=1.0)
        share.annotate(
            "uniform",
            (1.0, level),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 2),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color=GRAY,
        )
    share.set_ylim(bottom=0.0)
    share.yaxis.set_major_formatter(percent_ticks(share.get_ylim()[1]))
    share.set_ylabel("share of all tokens")
    share.set_title("Busiest expert of any layer", loc="left")
    means = [
        layer_mean(run.metrics.layers["entropy"])
        if "entropy" in run.metrics.layers
        else np.full(len(run.metrics.steps), np.nan)
        for run in runs
    ]
    draw_runs(entropy, runs, styles, means)
    entropy.set_ylabel("entropy (nats)")
    entropy.set_title("Entropy, mean over layers", loc="left")
    return to_svg(figure, "load", "Busiest expert's share and entropy over steps")


def throughput_figure(runs: Sequence[Run], styles: Sequence[LineStyle]) -> str:
    """Tokens per second over steps, from zero."""
    figure, grid = new_figure(2.8)
    axes = grid[0, 0]
    speeds = [run.metrics.scalars["tokens_per_second"] for run in runs]
    draw_runs(axes, runs, styles, speeds)
    finite = np.concatenate([speed[np.isfinite(speed)] for speed in speeds])
    if len(finite):
        axes.set_ylim(0.0, max(1.0, 1.15 * float(np.percentile(finite, 99))))
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_ylabel("tokens per second")
    return to_svg(figure, "throughput", "Tokens per second over steps")
