"""The routing metrics per layer of the records of `metrics.jsonl`."""

from __future__ import annotations

from array import array
from itertools import chain
from typing import Any

import numpy as np

from hero_moe.report.json_lines import NAN, InputError, doubles, numbers

# The keys of kLayerMetrics in src/train/layer_stats.cpp.
LAYER_SERIES = (
    "max_expert_share",
    "max_over_mean",
    "entropy",
    "dropped",
    "rms_hidden",
    "rms_history",
    "rho",
    "history_variance_share",
)


class LayerSeries:
    """Collects arrays [N, L] of N records; values that are missing or null are NaN.

    Almost all records of a file have the same keys: their values are checked and stored together.
    """

    def __init__(self) -> None:
        self._depth = 0  # L; 0: not known yet
        self._records = 0  # in _columns
        self._columns: dict[str, array] = {}
        # Records with the keys of the one before, not yet in _columns: [records, keys in LAYER_SERIES, L].
        self._names: list[str] = []
        self._keys: list[str] = []
        self._null_keys: list[str] = []
        self._pending = array("d")

    def add(self, where: str, record: Any) -> None:
        """Adds `layers` of a record. Raises `InputError`."""
        if self._add_regular(record):
            return
        self._store_pending()
        if not isinstance(record, dict):
            raise InputError(f"{where}: layers: found {type(record).__name__}, expected an object of lists")
        present = {key: v for key in LAYER_SERIES if (v := record.get(key)) is not None}
        for key, values in present.items():
            if not isinstance(values, list) or not values or (self._depth and len(values) != self._depth):
                found = f"{len(values)} values" if isinstance(values, list) else type(values).__name__
                raise InputError(
                    f"{where}: layers.{key}: found {found}, expected {self._depth or 'a list of'} values"
                )
            self._depth = len(values)
            self._column(key).extend(numbers(values, where, f"layers.{key}"))
        self._records += 1
        self._fill_columns()
        self._names, self._keys = list(record), list(present)
        self._null_keys = [key for key in LAYER_SERIES if key in record and key not in present]

    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays [N, L] of the keys in LAYER_SERIES that any record has."""
        self._store_pending()
        columns = self._columns
        return {
            key: np.array(columns[key]).reshape(-1, self._depth) for key in LAYER_SERIES if key in columns
        }

    def _add_regular(self, record: Any) -> bool:
        """Adds a record with the keys of the one before it, and L numbers or nulls for each; False for any other."""
        if not self._keys or type(record) is not dict or list(record) != self._names:
            return False
        if any(record[key] is not None for key in self._null_keys):
            return False
        lists = [record[key] for key in self._keys]
        if set(map(type, lists)) != {list} or set(map(len, lists)) != {self._depth}:
            return False
        values = doubles(list(chain.from_iterable(lists)))
        if values is None:
            return False
        self._pending.extend(values)
        return True

    def _store_pending(self) -> None:
        if not self._pending:
            return
        values = np.array(self._pending).reshape(-1, len(self._keys), self._depth)
        for number, key in enumerate(self._keys):
            self._columns[key].frombytes(values[:, number].tobytes())
        self._records += len(values)
        self._fill_columns()
        self._pending = array("d")

    def _column(self, key: str) -> array:
        """The column of a key, with NaN for all records before the first that has it."""
        if key not in self._columns:
            self._columns[key] = array("d", [NAN]) * (self._depth * self._records)
        return self._columns[key]

    def _fill_columns(self) -> None:
        """Makes all columns as long as the number of records."""
        for column in self._columns.values():
            column.extend([NAN] * (self._depth * self._records - len(column)))
