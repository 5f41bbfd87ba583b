"""Targets of benchmarks that compare our engine with others on one model, in equal precision."""

from __future__ import annotations

from collections.abc import Mapping

from rounds import Target, best_of, own_command, ratios_per_round

DTYPES = ("fp32", "bf16")


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
