"""Targets of benchmarks that compare our engine with others on one model, in equal precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rounds import Target, best_of, own_command, ratios_per_round, round_robin, spread

DTYPES = ("fp32", "bf16")
PAIR_IDS = 32  # new ids per request of pairs, at most: many short calls even out what else the machine does


def hero_over_baseline(
    measure: Callable[[str], float], dtypes: Sequence[str], rounds: int
) -> tuple[dict[str, list[float]], str]:
    """`measure(dtype)`, HERO's throughput over the baseline's from pairs of calls, of every dtype per round, and the
    line of the page."""
    runs = {dtype: partial(measure, dtype) for dtype in dtypes}
    ratios = round_robin(runs, rounds, "times the baseline's throughput", 3)
    shown = ", ".join(f"{spread(values, 3)} in {dtype}" for dtype, values in ratios.items())
    return ratios, f"HERO over baseline, from pairs of calls: {shown}."


def targets_of(
    rates: Mapping[str, list[float]], ours: str, what: str, pairs: Mapping[str, list[float]] | None = None
) -> list[Target]:
    """Our baseline against the fastest other engine in the same precision, and HERO against our baseline: the ratios
    `pairs` by dtype, or those of the rates. Engines are named `..., DTYPE`, our own `OURS, baseline, DTYPE` and
    `OURS, HERO, DTYPE`."""
    found = []
    for dtype in DTYPES:
        base, hero = (rates.get(f"{ours}, {kind}, {dtype}") for kind in ("baseline", "HERO"))
        if not base or not hero:
            continue
        others = {n: v for n, v in rates.items() if n.endswith(f", {dtype}") and not n.startswith(ours)}
        if others:
            best = best_of(others)
            ratio = ratios_per_round(base, others[best])
            found.append(Target(f"{what}, {dtype}, vs. {best}", 1.0, ratio, own_command()))
        ratio = pairs[dtype] if pairs else ratios_per_round(hero, base)
        found.append(Target(f"{what}, {dtype}, HERO vs. baseline", 0.97, ratio, own_command()))
    return found
