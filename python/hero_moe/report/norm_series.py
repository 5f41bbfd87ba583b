"""The norms of `train.norms_every` as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hero_moe.report.json_lines import InputError, numbers

# The metrics and components of src/train/norms.cpp and src/model/component.h.
WEIGHT_METRICS = ("grad_norm", "update_ratio", "weight_rms")
LOGITS = ("max_attention_logit", "max_router_logit")


@dataclass(frozen=True, eq=False)
class NormSeries:
    """`values` maps "METRIC.COMPONENT" and the keys in `LOGITS` to arrays [N, L], one row for each of `steps`
    and one column per decoder layer, or one for a component without layers. Missing values are NaN."""

    steps: np.ndarray
    values: dict[str, np.ndarray]

    @property
    def has_any(self) -> bool:
        """Whether there is any value of any key."""
        return any(map(self.has, self.values))

    def has(self, key: str) -> bool:
        """Whether there is any value."""
        return key in self.values and bool(np.isfinite(self.values[key]).any())


def read_norms(records: list[tuple[str, int, Any]]) -> NormSeries | None:
    """From (`FILE:LINE`, step, object `norms`) of every step that has one. Raises `InputError`."""
    rows: dict[str, list[Sequence[float]]] = {}
    for where, _, norms in records:
        row = _flat(norms, where)
        if rows and (row.keys() != rows.keys() or any(len(rows[k][0]) != len(row[k]) for k in row)):
            raise InputError(f"{where}: norms: found other components or layers than in earlier steps")
        for key, values in row.items():
            rows.setdefault(key, []).append(values)
    if not records:
        return None
    return NormSeries(
        np.array([step for _, step, _ in records]), {key: np.array(row) for key, row in rows.items()}
    )


def _flat(norms: Any, where: str) -> dict[str, Sequence[float]]:
    if not isinstance(norms, dict):
        raise InputError(f"{where}: norms: found {type(norms).__name__}, expected an object")
    flat: dict[str, Any] = {}
    for metric, entry in norms.items():
        flat |= {f"{metric}.{c}": v for c, v in entry.items()} if isinstance(entry, dict) else {metric: entry}
    return {
        key: numbers(entry if isinstance(entry, list) else [entry], where, f"norms.{key}")
        for key, entry in flat.items()
    }
