"""The tables of a study as text rows for the page and Markdown, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hero_moe.report.sections import NONE, percent, plain, signed
from hero_moe.study.reading import Study
from hero_moe.study.statistics import Noise, Result, Sample

LOSSES = (
    ("variant", ""),
    ("seeds", ""),
    ("final loss", "mean ± deviation"),
    ("advantage", "mean [95% interval]"),
    ("held-out loss", "mean ± deviation"),
    ("held-out advantage", "mean [95% interval]"),
)
DYNAMICS = (
    ("variant", ""),
    ("late growth", "mean [95% interval]"),
    ("peak expert load", "mean [95% interval]"),
    ("peak load change", "vs. baseline, mean [95% interval]"),
)
COSTS = (
    ("variant", ""),
    ("router FLOPs", "exact, vs. baseline"),
    ("step FLOPs", "exact, vs. baseline"),
    ("parameters", "vs. baseline"),
    ("tokens/s", "median"),
)


def _with_deviation(sample: Sample) -> str:
    if not math.isfinite(sample.mean):
        return NONE
    deviation = f" ± {sample.deviation:.4f}" if math.isfinite(sample.deviation) else ""
    return f"{sample.mean:.4f}{deviation}"


def with_interval(sample: Sample) -> str:
    """`+0.0123 [+0.0061, +0.0185]`, followed by a star if the interval excludes zero."""
    if not math.isfinite(sample.mean):
        return NONE
    if not math.isfinite(sample.low):
        return f"{sample.mean:+.4f}".replace("-", "−")
    star = " *" if sample.is_significant else ""
    return f"{sample.mean:+.4f} [{sample.low:+.4f}, {sample.high:+.4f}]{star}".replace("-", "−")


def share_with_interval(sample: Sample, change: bool = False) -> str:
    """`35.9% [33.0%, 38.8%]`; a `change` is `−7.3 points [−9.8, −4.8] *`."""
    if not change:
        interval = f" [{sample.low:.1%}, {sample.high:.1%}]" if math.isfinite(sample.low) else ""
        return f"{percent(sample.mean)}{interval}".replace("-", "−")
    if not math.isfinite(sample.mean):
        return NONE
    if not math.isfinite(sample.low):
        return f"{100 * sample.mean:+.1f} points".replace("-", "−")
    interval = f"[{100 * sample.low:+.1f}, {100 * sample.high:+.1f}]"
    star = " *" if sample.is_significant else ""
    return f"{100 * sample.mean:+.1f} points {interval}{star}".replace("-", "−")


def _relative(study: Study, one: Result, key: str) -> str:
    base = study.baseline.cost[key]
    if one.variant is study.baseline or base <= 0:
        return NONE
    change = one.variant.cost[key] / base - 1
    return f"{'−' if change < 0 else '+'}{abs(change):.2%}"


def loss_rows(study: Study, results: Sequence[Result]) -> list[list[str]]:
    """One row per variant with runs, columns as in LOSSES; then variants with the same model as another."""
    table = []
    for one in results:
        base = one.variant is study.baseline
        table.append(
            [
                one.variant.name,
                str(len(one.variant.runs)),
                _with_deviation(one.final_loss),
                NONE if base else with_interval(one.advantage),
                _with_deviation(one.held_out),
                NONE if base else with_interval(one.held_out_advantage),
            ]
        )
    same = [variant for variant in study.variants if variant.same_as]
    return table + [[variant.name, f"= {variant.same_as}", *[NONE] * (len(LOSSES) - 2)] for variant in same]


def dynamics_rows(study: Study, results: Sequence[Result]) -> list[list[str]]:
    """One row per variant with runs, columns as in DYNAMICS."""
    rows = []
    for one in results:
        base = one.variant is study.baseline
        growth = NONE if base else with_interval(one.late_growth)
        change = NONE if base else share_with_interval(one.peak_change, change=True)
        rows.append([one.variant.name, growth, share_with_interval(one.peak_load), change])
    return rows


def cost_rows(study: Study, results: Sequence[Result]) -> list[list[str]]:
    """One row per variant with runs, columns as in COSTS."""
    return [
        [
            one.variant.name,
            _relative(study, one, "router_step_flops_exact"),
            _relative(study, one, "step_flops_exact"),
            _relative(study, one, "parameters"),
            f"{one.tokens_per_second.mean:,.0f}" if math.isfinite(one.tokens_per_second.mean) else NONE,
        ]
        for one in results
    ]


def tables(
    study: Study, results: Sequence[Result]
) -> list[tuple[Sequence[tuple[str, str]], list[list[str]]]]:
    """Header and rows of each table, in order."""
    return [
        (LOSSES, loss_rows(study, results)),
        (DYNAMICS, dynamics_rows(study, results)),
        (COSTS, cost_rows(study, results)),
    ]


def _markdown(header: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> str:
    heads = [f"{title}<br>{small}" if small else title for title, small in header]
    return "".join(f"| {' | '.join(line)} |\n" for line in (heads, ["---"] * len(heads), *rows))


def markdown(study: Study, results: Sequence[Result]) -> str:
    """All tables, and the noise, as Markdown."""
    parts = [_markdown(header, rows) for header, rows in tables(study, results)]
    noise = noise_in_words(results)
    return "\n".join([*parts, f"{noise}\n"] if noise else parts)


LOSS_KINDS = {"final_loss": "final loss", "held_out": "held-out loss"}


def noises(results: Sequence[Result]) -> dict[str, Noise]:
    """The noise of each kind of loss with residual degrees of freedom."""
    found = {key: Noise.of([getattr(one, key).by_seed for one in results]) for key in LOSS_KINDS}
    return {key: noise for key, noise in found.items() if noise}


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}{'s' if count != 1 else ''}"


def noise_in_words(results: Sequence[Result]) -> str:
    """A sentence for each kind of loss; empty if none is known."""
    sentences = []
    for key, noise in noises(results).items():
        least = ", ".join(
            f"{difference:.4f} over {_counted(count, 'seed')}"
            for count, difference in noise.least_difference.items()
        )
        sentences.append(
            f"Run-to-run standard deviation of the {LOSS_KINDS[key]}: {noise.deviation:.4f} (residual of "
            f"variant and seed means, {_counted(noise.degrees, 'degree')} of freedom); differences below "
            f"{least} are not significant at 95%."
        )
    return " ".join(sentences)


def _sample_json(sample: Sample) -> dict[str, Any]:
    def number(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "mean": number(sample.mean),
        "deviation": number(sample.deviation),
        "low": number(sample.low),
        "high": number(sample.high),
        "by_seed": {str(seed): value for seed, value in sample.by_seed.items()},
    }


def as_json(study: Study, results: Sequence[Result]) -> dict[str, Any]:
    """All results; null for values that need more seeds or an evaluation."""
    keys = (
        *("final_loss", "held_out", "advantage", "held_out_advantage", "late_growth"),
        *("peak_load", "peak_change", "tokens_per_second"),
    )
    return {
        "baseline": study.baseline.name,
        "steps": study.steps,
        "tokens_per_step": study.tokens_per_step,
        "variants": {
            one.variant.name: {key: _sample_json(getattr(one, key)) for key in keys}
            | {"cost": one.variant.cost}
            for one in results
        },
        "noise": {key: asdict(noise) for key, noise in noises(results).items()},
        "same_as": {variant.name: variant.same_as for variant in study.variants if variant.same_as},
    }


def summary(study: Study, results: Sequence[Result]) -> str:
    """A short summary of the comparison."""
    others = [one for one in results if one.variant is not study.baseline and one.advantage.by_seed]
    base = next(one for one in results if one.variant is study.baseline)
    text = (
        f"{len(study.trained)} variants of {study.config}, {study.steps:,} steps of "
        f"{study.tokens_per_step:,} tokens; "
        f"{study.baseline.name} has a final loss of {plain(base.final_loss.mean, 4)}"
    )
    if not others:
        return f"{text}."
    best = max(others, key=lambda one: one.advantage.mean)
    significant = [one.variant.name for one in others if one.advantage.is_significant]
    names = ", ".join(significant) if significant else "none"
    which = "" if len(others) == 1 else " (lowest of the others)"
    return (
        f"{text}; {best.variant.name}{which} differs by {signed(-best.advantage.mean)}. "
        f"Significant differences (95% interval of the paired difference): {names}."
    )
