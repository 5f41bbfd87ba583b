"""Statistics of a study: losses of each variant, and their paired differences to the baseline over seeds.

Runs with the same seed use the same batches and random initialization, so differences are paired by seed;
their mean has a confidence interval from Student's t. An advantage is the baseline's loss minus the
variant's: positive values favor the variant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from hero_moe.report.comparison import end_mean, final_loss, peak_load, smooth
from hero_moe.report.figures import SMOOTHED_DIFFERENCE, smoothing_window
from hero_moe.report.run_files import Run
from hero_moe.study.reading import Study, Variant

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Sample:
    """Values by seed with their mean, standard deviation and 95% confidence interval of the mean (both NaN
    for a single value)."""

    by_seed: dict[int, float]
    mean: float
    deviation: float
    low: float
    high: float

    @classmethod
    def of(cls, by_seed: dict[int, float]) -> Sample:
        """All statistics are NaN without values."""
        values = np.array(list(by_seed.values()))
        count = len(values)
        mean = float(values.mean()) if count else math.nan
        if count < 2:
            return cls(by_seed, mean, math.nan, math.nan, math.nan)
        deviation = float(values.std(ddof=1))
        half = float(student.ppf(0.5 + CONFIDENCE / 2, count - 1)) * deviation / math.sqrt(count)
        return cls(by_seed, mean, deviation, mean - half, mean + half)

    @property
    def is_significant(self) -> bool:
        """Whether the confidence interval excludes zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Result:
    """Results of one variant. `late_growth`: mean advantage over the last fifth of the steps minus that over
    the middle fifth. `peak_load`: share of all tokens of the busiest expert of any layer, mean over the last
    tenth of the steps; `peak_change`: difference to the baseline with the same seed."""

    variant: Variant
    final_loss: Sample
    held_out: Sample
    advantage: Sample
    held_out_advantage: Sample
    late_growth: Sample
    peak_load: Sample
    peak_change: Sample
    tokens_per_second: Sample


@dataclass(frozen=True)
class Noise:
    """Run-to-run noise of a loss: the residual standard deviation of a least-squares fit variant + seed over
    all finished runs. Pooled over variants, assuming equal variance, it is more precise than an estimate per
    variant. `least_difference`: by number of common seeds, the smallest difference of two variants' means
    that is significant at 95%."""

    deviation: float
    degrees: int
    least_difference: dict[int, float]

    @classmethod
    def of(cls, losses: Sequence[dict[int, float]]) -> Noise | None:
        """From every variant's losses by seed; None without residual degrees of freedom."""
        runs = [(number, seed) for number, by_seed in enumerate(losses) for seed in by_seed]
        seeds = sorted({seed for _, seed in runs})
        design = np.zeros((len(runs), len(losses) + len(seeds)))
        for row, (number, seed) in enumerate(runs):
            design[row, number] = design[row, len(losses) + seeds.index(seed)] = 1
        degrees = len(runs) - int(np.linalg.matrix_rank(design)) if runs else 0
        if degrees == 0:
            return None
        found = np.array([losses[number][seed] for number, seed in runs])
        residual = found - design @ np.linalg.lstsq(design, found, rcond=None)[0]
        deviation = math.sqrt(float((residual**2).sum()) / degrees)
        least = float(student.ppf(0.5 + CONFIDENCE / 2, degrees)) * deviation
        shared = {
            len(set(one) & set(other)) for at, one in enumerate(losses) for other in losses[at + 1 :]
        } - {0}
        return cls(deviation, degrees, {count: least * math.sqrt(2 / count) for count in sorted(shared)})


def held_out_loss(run: Run) -> float:
    """Mean loss over the evaluation's tokens; NaN without an evaluation at the last step."""
    last = run.metrics.steps[-1]
    entries = [(entry.loss, entry.tokens) for entry in run.evaluations if entry.step == last and entry.tokens]
    tokens = sum(count for _, count in entries)
    return sum(loss * count for loss, count in entries) / tokens if tokens else math.nan


def _speed(run: Run) -> float:
    return float(np.nanmedian(run.metrics.scalars["tokens_per_second"]))


def advantage_curve(run: Run, baseline: Run) -> np.ndarray:
    """Baseline's training loss minus the run's, step by step [steps]."""
    return baseline.metrics.scalars["lm_loss"] - run.metrics.scalars["lm_loss"]


def _late_growth(curve: np.ndarray) -> float:
    middle = curve[int(0.4 * len(curve)) : int(0.6 * len(curve))]
    return float(curve[int(0.8 * len(curve)) :].mean() - middle.mean()) if len(middle) else math.nan


def _sample(runs: dict[int, Run], value: Callable[[Run], float]) -> Sample:
    found = {seed: value(run) for seed, run in runs.items()}
    return Sample.of({seed: number for seed, number in found.items() if math.isfinite(number)})


def _paired(variant: Variant, baseline: Variant, value: Callable[[Run, Run], float]) -> Sample:
    seeds = [seed for seed in variant.runs if seed in baseline.runs] if variant is not baseline else []
    found = {seed: value(variant.runs[seed], baseline.runs[seed]) for seed in seeds}
    return Sample.of({seed: number for seed, number in found.items() if math.isfinite(number)})


def result(variant: Variant, baseline: Variant) -> Result:
    """All results of one variant; paired samples contain the seeds that the baseline also finished."""
    return Result(
        variant=variant,
        final_loss=_sample(variant.runs, final_loss),
        held_out=_sample(variant.runs, held_out_loss),
        advantage=_paired(variant, baseline, lambda run, base: end_mean(advantage_curve(run, base))),
        held_out_advantage=_paired(
            variant, baseline, lambda run, base: held_out_loss(base) - held_out_loss(run)
        ),
        late_growth=_paired(variant, baseline, lambda run, base: _late_growth(advantage_curve(run, base))),
        peak_load=_sample(variant.runs, peak_load),
        peak_change=_paired(variant, baseline, lambda run, base: peak_load(run) - peak_load(base)),
        tokens_per_second=_sample(variant.runs, _speed),
    )


def results(study: Study) -> list[Result]:
    """Results of every variant with finished runs, in the study's order."""
    return [result(variant, study.baseline) for variant in study.trained]


@dataclass(frozen=True)
class Band:
    """Mean over seeds of smoothed curves [steps], and the standard deviation over seeds (zeros for one
    seed)."""

    mean: np.ndarray
    deviation: np.ndarray


def band(curves: Sequence[np.ndarray], part: float = SMOOTHED_DIFFERENCE) -> Band:
    """Smooths every curve over the fraction `part` of its steps first."""
    smoothed = np.stack([smooth(curve, smoothing_window(len(curve), part)) for curve in curves])
    spread = smoothed.std(axis=0, ddof=1) if len(smoothed) > 1 else np.zeros(smoothed.shape[1])
    return Band(smoothed.mean(axis=0), spread)
