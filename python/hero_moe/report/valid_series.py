"""The validation losses of `eval.every` as arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hero_moe.report.json_lines import InputError, number


@dataclass(frozen=True, eq=False)
class ValidSeries:
    """Losses in nats per token after each of `steps` [N]: `loss` [N] over all data sets, and `sets`, which
    maps each name to an array [N]. Missing and null values are NaN."""

    steps: np.ndarray
    loss: np.ndarray
    sets: dict[str, np.ndarray]

    @property
    def lowest(self) -> int | None:
        """Index of the lowest loss, or None if none is finite."""
        finite = np.isfinite(self.loss)
        return int(np.argmin(np.where(finite, self.loss, math.inf))) if finite.any() else None


def read_valid(records: list[tuple[str, int, dict[str, Any]]]) -> ValidSeries | None:
    """From (`FILE:LINE`, step, record of `metrics.jsonl`) of every step with a validation. Raises
    `InputError`."""
    if not records:
        return None
    loss = np.full(len(records), math.nan)
    sets: dict[str, np.ndarray] = {}
    for index, (where, _, record) in enumerate(records):
        loss[index] = number(record["valid_loss"], where, "valid_loss")
        entries = record.get("valid")
        if not isinstance(entries, dict):
            raise InputError(f"{where}: valid: found {type(entries).__name__}, expected an object of losses")
        for name, value in entries.items():
            column = sets.setdefault(name, np.full(len(records), math.nan))
            column[index] = number(value, where, f"valid.{name}")
    return ValidSeries(np.array([step for _, step, _ in records]), loss, sets)
