"""The figures of a study: losses and advantages over steps with their spread over seeds, and final
advantages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hero_moe.report.figures import (
    BASELINE_COLOR,
    COLORS,
    DASHES,
    GRAY,
    SMOOTHED,
    LineStyle,
    make_room,
    new_figure,
    step_axis,
)
from hero_moe.study.reading import Study, Variant
from hero_moe.study.statistics import Band, Result, advantage_curve, band

MANY_COLORS = (*COLORS, "#882255", "#999933")  # plus two from Tol
ROW = 0.42  # inches per variant in the figure of final advantages


def styles_of(study: Study) -> dict[str, LineStyle]:
    """Line styles by name: black for the baseline, different colors, then dashes, for the others."""
    styles, others = {}, 0
    for variant in study.trained:
        if variant is study.baseline:
            styles[variant.name] = LineStyle(BASELINE_COLOR, ())
        else:
            styles[variant.name] = LineStyle(
                MANY_COLORS[others % len(MANY_COLORS)], DASHES[others // len(MANY_COLORS) % len(DASHES)]
            )
            others += 1
    return styles


def loss_bands(study: Study) -> dict[str, Band]:
    """Training loss of each variant over its seeds."""
    return {
        variant.name: band([run.metrics.scalars["lm_loss"] for run in variant.runs.values()], SMOOTHED)
        for variant in study.trained
    }


def advantage_bands(study: Study) -> dict[str, Band]:
    """Advantage of each variant over the seeds in common with the baseline."""
    bands = {}
    for variant in study.trained:
        shared = [seed for seed in variant.runs if seed in study.baseline.runs]
        if variant is not study.baseline and shared:
            curves = [advantage_curve(variant.runs[seed], study.baseline.runs[seed]) for seed in shared]
            bands[variant.name] = band(curves)
    return bands


def _draw(
    axes: Axes, steps: np.ndarray, bands: dict[str, Band], styles: dict[str, LineStyle], fill: bool
) -> None:
    for name, one in bands.items():
        style = styles[name]
        if fill and one.deviation.any():
            axes.fill_between(
                steps,
                one.mean - one.deviation,
                one.mean + one.deviation,
                color=style.color,
                alpha=0.13,
                linewidth=0,
            )
        axes.plot(steps, one.mean, **style.options())


def _legend(figure: Figure, names: Sequence[str], styles: dict[str, LineStyle]) -> None:
    lines = [Line2D([], [], **styles[name].options()) for name in names]
    figure.legend(lines, names, loc="outside upper left", frameon=False, ncols=8)


def _steps(study: Study) -> np.ndarray:
    return next(iter(study.baseline.runs.values())).metrics.steps


def loss_figure(study: Study) -> Figure:
    """Mean training loss over seeds, with an inset of the last fifth of the steps."""
    figure, grid = new_figure(4.4)
    axes, steps, styles, bands = grid[0, 0], _steps(study), styles_of(study), loss_bands(study)
    _draw(axes, steps, bands, styles, fill=False)
    step_axis(axes, [steps])
    axes.set_ylabel("training loss (nats per token)")
    late = steps >= steps[-1] - (steps[-1] - steps[0]) / 5
    if late.sum() >= 4:
        left, right = axes.get_xlim()
        below = steps >= left + 0.4 * (right - left)  # the inset's axis labels extend further left
        make_room(axes, [one.mean[below] for one in bands.values()], 0.26)
        inset = axes.inset_axes((0.45, 0.36, 0.53, 0.58))
        cut = {name: Band(one.mean[late], one.deviation[late]) for name, one in bands.items()}
        _draw(inset, steps[late], cut, styles, fill=False)
        step_axis(inset, [steps[late]])
        inset.set_xlabel("")
        inset.tick_params(labelsize=8)
        inset.set_title("last fifth of the steps", fontsize=8, loc="left", color="#444444")
    _legend(figure, list(bands), styles)
    return figure


def advantage_figure(study: Study) -> Figure:
    """Mean advantage over the baseline with a band of one standard deviation over seeds."""
    figure, grid = new_figure(4.0)
    axes, steps, styles, bands = grid[0, 0], _steps(study), styles_of(study), advantage_bands(study)
    axes.axhline(0.0, color="#000000", linewidth=1.0)
    _draw(axes, steps, bands, styles, fill=True)
    settled = slice(len(steps) // 20, None)
    ends = [one.mean[settled] + sign * one.deviation[settled] for one in bands.values() for sign in (-1, 1)]
    if ends:
        low, high = min(0.0, *(end.min() for end in ends)), max(0.0, *(end.max() for end in ends))
        axes.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low) + 1e-9)
    step_axis(axes, [steps])
    axes.set_ylabel(f"{study.baseline.name} − variant\n(nats per token)")
    _legend(figure, list(bands), styles)
    return figure


def final_figure(study: Study, results: Sequence[Result]) -> Figure:
    """Final advantage of each variant (every seed, mean, confidence interval) on training batches and
    held-out text."""
    shown = [one for one in results if one.variant is not study.baseline]
    held_out = any(one.held_out_advantage.by_seed for one in shown)
    figure, grid = new_figure(1.0 + ROW * max(2, len(shown)), columns=2 if held_out else 1)
    styles = styles_of(study)
    panels = [("training loss, last tenth of the steps", "advantage")]
    panels += [("held-out loss", "held_out_advantage")] if held_out else []
    for axes, (title, key) in zip(grid[0], panels):
        axes.axvline(0.0, color="#000000", linewidth=1.0)
        for row, one in enumerate(shown):
            sample, color = getattr(one, key), styles[one.variant.name].color
            values = list(sample.by_seed.values())
            axes.plot(values, np.full(len(values), row), "|", color=color, markersize=11, alpha=0.8)
            if len(values) > 1:
                axes.plot([sample.low, sample.high], [row, row], color=color, linewidth=2.2)
            axes.plot([sample.mean], [row], "o", color=color, markersize=6)
        axes.set_yticks(range(len(shown)), [one.variant.name for one in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_title(title, loc="left")
        axes.set_xlabel(f"{study.baseline.name} − variant (nats per token)")
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0, labelcolor=GRAY if axes is not grid[0][0] else "#1a1a1a")
    return figure


def variants_in_words(variants: Sequence[Variant]) -> str:
    """`mask10 = hero` for every variant with the same model as another; empty without any."""
    return "; ".join(f"{variant.name} = {variant.same_as}" for variant in variants if variant.same_as)
