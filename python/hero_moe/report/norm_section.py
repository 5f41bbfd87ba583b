"""The report section on norms: small panels per metric and component, and the largest logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from hero_moe.report import page
from hero_moe.report.comparison import layer_mean
from hero_moe.report.figures import (
    RAW_RUNS,
    ROUND_STEPS,
    LineStyle,
    downsample,
    new_figure,
    step_axis,
    to_svg,
)
from hero_moe.report.norm_series import LOGITS, WEIGHT_METRICS
from hero_moe.report.run_files import Run
from hero_moe.report.sections import Comparison

TITLES = {
    "grad_norm": "gradient norm",
    "update_ratio": "update / weight",
    "weight_rms": "weight RMS",
    "max_attention_logit": "largest attention logit",
    "max_router_logit": "largest router logit",
}
COMPONENTS = {
    "embedding": "embedding",
    "attention": "attention",
    "mlp": "dense, shared",
    "experts": "experts",
    "w_o": "W_O",
    "w_r": "W_R",
    "head": "head",
}


def norm_section(shown: Comparison) -> str:
    """Empty if no run logged any norm or logit."""
    keep = [run.metrics.norms is not None and run.metrics.norms.has_any for run in shown.runs]
    runs = [run for run, kept in zip(shown.runs, keep) if kept]
    if not runs:
        return ""
    styles = [style for style, kept in zip(shown.styles, keep) if kept]
    layers = "Lines are means over the decoder layers"
    if len(runs) <= RAW_RUNS:
        layers += ", bands reach from the smallest to the largest layer"
    caption = (
        "Norm of the gradient before clipping, norm of a step's update relative to that of the weights, and RMS "
        f"of the weights, per component. {layers}. Norm weights are in metrics.jsonl and TensorBoard only."
    )
    logits = "Largest logit of a step, over all tokens and heads or experts. " + layers + "."
    series = [run.metrics.norms for run in runs if run.metrics.norms]
    weights = [c for c in COMPONENTS if any(one.has(f"{m}.{c}") for one in series for m in WEIGHT_METRICS)]
    figures = []
    if weights:
        figures.append(page.figure(weights_figure(runs, styles, weights), caption, shown.key(keep)))
    if any(one.has(key) for one in series for key in LOGITS):
        figures.append(page.figure(logits_figure(runs, styles), logits, shown.key(keep)))
    return page.section("Norms and logits", *figures)


def weights_figure(runs: Sequence[Run], styles: Sequence[LineStyle], components: Sequence[str]) -> str:
    """Rows: metrics; columns: components, at least one."""
    figure, grid = new_figure(5.6, len(WEIGHT_METRICS), len(components))
    for row, metric in zip(grid, WEIGHT_METRICS):
        for axes, component in zip(row, components):
            draw_series(axes, runs, styles, f"{metric}.{component}")
            if metric != "weight_rms":  # changes little
                log_axis(axes)
            axes.set_xlabel("step" if metric == WEIGHT_METRICS[-1] else "")
            axes.xaxis.set_major_locator(MaxNLocator(nbins=3, integer=True, steps=ROUND_STEPS))
            axes.tick_params(labelsize=7)
        row[0].set_ylabel(TITLES[metric])
    for axes, component in zip(grid[0], components):
        axes.set_title(COMPONENTS[component])
    return to_svg(figure, "norms", "Norms of gradients, updates and weights over steps")


def log_axis(axes: Axes) -> None:
    """A logarithmic y axis with plain numbers, if there is a positive value; matplotlib's own labels are mathematical
    text."""
    if not any((np.asarray(line.get_ydata()) > 0).any() for line in axes.lines):
        return
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 30 * low else (1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def logits_figure(runs: Sequence[Run], styles: Sequence[LineStyle]) -> str:
    """One panel each for attention and routers."""
    figure, grid = new_figure(2.8, 1, len(LOGITS))
    for axes, key in zip(grid[0], LOGITS):
        draw_series(axes, runs, styles, key)
        axes.set_ylabel(TITLES[key])
    return to_svg(figure, "logits", "Largest attention and router logits over steps")


def draw_series(axes: Axes, runs: Sequence[Run], styles: Sequence[LineStyle], key: str) -> None:
    """One line per run that has the series, with a band over its layers if there are few runs."""
    steps = []
    for run, style in zip(runs, styles):
        norms = run.metrics.norms
        if norms is None or not norms.has(key):
            continue
        values, mean = norms.values[key], layer_mean(norms.values[key])
        steps.append(norms.steps)
        marker: dict[str, Any] = {"marker": "o", "markersize": 4} if len(norms.steps) < 3 else {}
        axes.plot(*downsample(norms.steps, mean, 400), **style.options(), **marker)
        if values.shape[1] > 1 and len(runs) <= RAW_RUNS:
            low, high = np.ma.masked_invalid(values).min(1), np.ma.masked_invalid(values).max(1)
            axes.fill_between(norms.steps, low, high, color=style.color, alpha=0.15, linewidth=0)
    step_axis(axes, steps)
