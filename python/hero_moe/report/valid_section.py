"""The report section on validation during training: final and lowest losses, and curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hero_moe.report import page
from hero_moe.report.figures import LineStyle, downsample, new_figure, step_axis, to_svg
from hero_moe.report.run_files import Run
from hero_moe.report.sections import NONE, Comparison, plain, single_runs_in_short


def valid_section(shown: Comparison) -> str:
    """Empty if no run was validated during training."""
    keep = [run.metrics.valid is not None for run in shown.runs]
    runs = [run for run, kept in zip(shown.runs, keep) if kept]
    if not runs:
        return ""
    styles = [style for style, kept in zip(shown.styles, keep) if kept]
    notes = ["Losses in nats per token; over all data sets, each token counts once."]
    if len({_measured(run) for run in runs}) > 1:
        notes.append("The runs were validated on different data or numbers of batches: do not compare them.")
    caption = "Loss on the validation data over all data sets."
    return page.section(
        "Validation",
        _table(runs),
        page.paragraph(" ".join([*notes, *single_runs_in_short(shown)])),
        page.figure(valid_figure(runs, styles), caption, shown.key(keep)),
    )


def _measured(run: Run) -> tuple[Any, ...]:
    """What a validation loss of the run is computed on."""
    valid = run.metrics.valid
    names = tuple(valid.sets) if valid else ()
    return names, *(str(run.config.get(key)) for key in ("eval.data", "eval.batches"))


def _table(runs: Sequence[Run]) -> str:
    series = [(run, run.metrics.valid) for run in runs if run.metrics.valid]
    names = list(dict.fromkeys(name for _, valid in series for name in valid.sets))
    sets = names if len(names) > 1 else []
    header: list[str | tuple[str, str]] = ["run", "last step", ("final loss", "all data sets")]
    header += [*sets, ("lowest loss", "all data sets"), "at step"]
    rows = []
    for run, valid in series:
        lowest = valid.lowest
        finals = [
            valid.loss[-1],
            *(valid.sets[name][-1] if name in valid.sets else math.nan for name in sets),
        ]
        rows.append(
            [
                page.cell(run.name),
                page.cell(f"{valid.steps[-1]:,}"),
                *(page.cell(plain(float(value))) for value in finals),
                page.cell(plain(float(valid.loss[lowest])) if lowest is not None else NONE),
                page.cell(f"{valid.steps[lowest]:,}" if lowest is not None else NONE),
            ]
        )
    return page.table(header, rows)


def valid_figure(runs: Sequence[Run], styles: Sequence[LineStyle]) -> str:
    """One curve per run, with a marker per validation if there are few."""
    figure, grid = new_figure(3.4)
    axes = grid[0, 0]
    series = [(run.metrics.valid, style) for run, style in zip(runs, styles) if run.metrics.valid]
    for valid, style in series:
        marker: dict[str, Any] = {"marker": "o", "markersize": 3} if len(valid.steps) <= 40 else {}
        axes.plot(*downsample(valid.steps, valid.loss, 400), **style.options(), **marker)
    axes.set_ylabel("loss (nats per token)")
    step_axis(axes, [valid.steps for valid, _ in series])
    return to_svg(figure, "valid", "Validation loss over steps")
