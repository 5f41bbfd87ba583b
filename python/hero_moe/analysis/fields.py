"""Checked access to the values of a JSON object: every error is one line with the file and the key."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hero_moe.report.json_lines import InputError


def found(value: Any) -> str:
    """A short description of an invalid value."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "an object" if isinstance(value, dict) else json.dumps(value, ensure_ascii=False)[:40]


def _is_number(value: Any) -> bool:
    """Whether it is a finite double."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


class Fields:
    """One JSON object; `where` is the file and the key path of the object. All methods raise `InputError`."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise InputError(f"{where}: found {found(value)}, expected an object")
        self.values, self.where = value, where

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def fail(self, key: str, expected: str) -> InputError:
        """The error for an invalid or missing value `key`."""
        what = found(self.values[key]) if key in self.values else "nothing"
        return InputError(f"{self.where}: {key}: found {what}, expected {expected}")

    def text(self, key: str) -> str:
        """A string."""
        if not isinstance(self.values.get(key), str):
            raise self.fail(key, "a string")
        return self.values[key]

    def flag(self, key: str) -> bool:
        """true or false."""
        if not isinstance(self.values.get(key), bool):
            raise self.fail(key, "true or false")
        return self.values[key]

    def integer(self, key: str, low: int, high: int | None = None) -> int:
        """An integer from `low` to `high`, or without upper bound."""
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < low or value > (high or value):
            expected = f"an integer of at least {low}" if high is None else f"one of {low} to {high}"
            raise self.fail(key, expected)
        return value

    def integer_or_null(self, key: str, low: int) -> int | None:
        """An integer of at least `low`, or None for null."""
        if key in self.values and self.values[key] is None:
            return None
        return self.integer(key, low)

    def number(self, key: str, nullable: bool = False) -> float:
        """A finite number; NaN for null where `nullable`."""
        value: Any = self.values.get(key)
        if nullable and key in self.values and value is None:
            return math.nan
        if not _is_number(value):
            raise self.fail(key, "a number or null" if nullable else "a number")
        return float(value)

    def array(self, key: str, shape: Sequence[int], nullable: bool = False) -> np.ndarray:
        """Nested lists of finite numbers as an array of this `shape`; NaN for null where `nullable`."""
        expected = f"numbers{' or nulls' if nullable else ''} [{', '.join(map(str, shape))}]"
        numbers = []
        for value in _leaves(self.values.get(key), tuple(shape)):
            if not (_is_number(value) or (nullable and value is None and key in self.values)):
                within = f", and {found(value)} in it" if isinstance(self.values.get(key), list) else ""
                raise InputError(f"{self.fail(key, expected)}{within}")
            numbers.append(math.nan if value is None else value)
        return np.array(numbers, dtype=float).reshape(shape)

    def integers(self, key: str, shape: Sequence[int], high: int | None = None) -> np.ndarray:
        """Nested lists of integers from 0 to `high`, or without upper bound, as an array of this `shape`."""
        values = self.array(key, shape)
        limit = 2.0**63 if high is None else high + 1
        wrong = (values != np.floor(values)) | (values < 0) | (values >= limit)
        if wrong.any():
            raise self.fail(key, f"integers from 0{'' if high is None else f' to {high}'}")
        return values.astype(np.int64)

    def texts(self, key: str, count: int | None = None) -> list[str]:
        """A list of strings, of length `count` if given."""
        value: Any = self.values.get(key)
        right = isinstance(value, list) and all(isinstance(item, str) for item in value)
        if not right or count not in (None, len(value)):
            raise self.fail(key, f"{'' if count is None else f'{count} '}strings")
        return value

    def fields(self, key: str) -> Fields:
        """An object."""
        if not isinstance(self.values.get(key), dict):
            raise self.fail(key, "an object")
        return Fields(self.values[key], f"{self.where}: {key}")

    def objects(self, key: str) -> list[Fields]:
        """A list of objects."""
        value = self.values.get(key)
        if not isinstance(value, list):
            raise self.fail(key, "a list of objects")
        return [Fields(item, f"{self.where}: {key}[{index}]") for index, item in enumerate(value)]


def _leaves(value: Any, shape: tuple[int, ...]) -> Iterator[Any]:
    """The innermost values of nested lists; yields parts with a wrong shape unchanged, for an error."""
    if not shape:
        yield value
    elif not isinstance(value, list) or len(value) != shape[0]:
        yield value if not _is_number(value) and value is not None else [value]
    else:
        for item in value:
            yield from _leaves(item, shape[1:])
