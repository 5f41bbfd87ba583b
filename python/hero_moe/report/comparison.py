"""Values of a comparison: final losses, differences to the baseline, smoothing and downsampling of curves.

Comparisons use the language-model loss without auxiliary terms, because variants add different ones. Final
values are means over the last tenth of a run's steps, rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hero_moe.report.run_files import Run, last_tenth


@dataclass(frozen=True)
class Difference:
    """Loss of a run minus the baseline's on common steps. Means over their last tenth: `mine` and `theirs` of
    the two losses, `end` of the difference; `relative` is `end / theirs`."""

    steps: np.ndarray
    values: np.ndarray
    mine: float
    theirs: float
    end: float
    relative: float
    all_steps: bool
    """Whether both runs have the common steps and no others."""


@dataclass(frozen=True)
class Peak:
    """The busiest expert of a map of shares. Layers count from 1, experts from 0; `share` is relative to all
    tokens."""

    layer: int
    expert: int
    share: float


def end_mean(values: np.ndarray) -> float:
    """Mean of the last tenth of `values` [N]; NaN if any of those is NaN or `values` is empty."""
    return float(np.mean(values[-last_tenth(len(values)) :])) if len(values) else float("nan")


def final_loss(run: Run) -> float:
    """Language-model loss in nats per token, averaged over the last tenth of the run's steps."""
    return end_mean(run.metrics.scalars["lm_loss"])


def pick_baseline(runs: list[Run]) -> Run:
    """The first run with a baseline router, or else the first one."""
    return next((run for run in runs if run.is_baseline), runs[0])


def difference(run: Run, baseline: Run) -> Difference | None:
    """Step-by-step loss difference, or None if the runs have no common step."""
    steps, mine, theirs = np.intersect1d(
        run.metrics.steps, baseline.metrics.steps, assume_unique=True, return_indices=True
    )
    if not len(steps):
        return None
    own, reference = run.metrics.scalars["lm_loss"][mine], baseline.metrics.scalars["lm_loss"][theirs]
    end = end_mean(own - reference)
    return Difference(
        steps=steps,
        values=own - reference,
        mine=end_mean(own),
        theirs=end_mean(reference),
        end=end,
        relative=end / (end_mean(reference) or np.nan),
        all_steps=len(steps) == len(run.metrics.steps) == len(baseline.metrics.steps),
    )


def peak_load(run: Run) -> float:
    """Share of all tokens that the busiest expert of any layer receives in a step, averaged over the last
    tenth of the run's steps; NaN if any of them has no value."""
    return end_mean(run.metrics.scalars["max_expert_share"])


def mapped_peak(run: Run) -> Peak | None:
    """The busiest expert of the run's mean routing snapshot, or None without a snapshot."""
    if run.routing is None or not np.isfinite(run.routing.share).any():
        return None
    layer, expert = np.unravel_index(np.nanargmax(run.routing.share), run.routing.share.shape)
    return Peak(layer=int(layer) + 1, expert=int(expert), share=float(run.routing.share[layer, expert]))


def layer_mean(values_NL: np.ndarray) -> np.ndarray:
    """Mean over the layers with a value, per record; NaN if no layer has one."""
    present = np.isfinite(values_NL)
    total = np.where(present, values_NL, 0.0).sum(axis=1)
    return np.divide(
        total, present.sum(axis=1), out=np.full(len(values_NL), np.nan), where=present.any(axis=1)
    )


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Centered moving mean over `window` records; skips NaN.

    At the end the window is truncated. At the start it grows from one record and stays centered, so that it
    follows the steep initial drop of a training loss.
    """
    half = window // 2
    if half == 0:
        return values
    present = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(present, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(present)])
    index = np.arange(len(values))
    reach = np.minimum(index, half)
    low, high = index - reach, np.minimum(index + reach + 1, len(values))
    count = counts[high] - counts[low]
    return np.divide(sums[high] - sums[low], count, out=np.full(len(values), np.nan), where=count > 0)


def downsample(x: np.ndarray, y: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Keeps at most `limit` evenly spaced points, including the first and the last."""
    if len(x) <= limit:
        return x, y
    keep = np.linspace(0, len(x) - 1, limit).round().astype(int)
    return x[keep], y[keep]


def downsample_extremes(x: np.ndarray, y: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Keeps at most `limit` points: the minimum and maximum of equal intervals, so that spikes remain
    visible."""
    if len(x) <= limit:
        return x, y
    kept: list[int] = []
    for interval in np.array_split(np.arange(len(x)), limit // 2):
        finite = interval[np.isfinite(y[interval])]
        interval = finite if len(finite) else interval[:1]
        kept += sorted({int(interval[np.argmin(y[interval])]), int(interval[np.argmax(y[interval])])})
    return x[kept], y[kept]


def bucket_means(values_NL: np.ndarray, limit: int) -> np.ndarray:
    """Means [min(N, limit), L] over equal intervals of records, skipping NaN."""
    intervals = np.array_split(values_NL, min(len(values_NL), limit))
    return np.stack([layer_mean(interval.T) for interval in intervals])


def differing_keys(runs: list[Run]) -> list[str]:
    """Configuration keys, in file order, with different values in some runs (a missing key is a value)."""
    missing = object()
    return [
        key
        for key in all_keys(runs)
        if any(run.config.get(key, missing) != runs[0].config.get(key, missing) for run in runs)
    ]


def all_keys(runs: list[Run]) -> list[str]:
    """Every configuration key of any run, in file order."""
    return list(dict.fromkeys(key for run in runs for key in run.config))
