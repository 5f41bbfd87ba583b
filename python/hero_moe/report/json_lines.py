"""Files of run folders: JSON Lines and their values, with one-line errors."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from hero_moe.json_text import parse_json

NAN = float("nan")
NUMBERS_OR_NULL = frozenset({float, int, NoneType})  # not bool
INTEGER_BOUND = 1 << 63


class InputError(Exception):
    """An error in an input file or on the command line, described in one line."""


def read(path: Path) -> bytes:
    """The bytes of a file. Raises `InputError`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror or error}), expected a file of a run"
        ) from error


def _parse_line(line: bytes) -> Any:
    """`parse_json`, in a fifth of the time; integers beyond 64 bits are floats. Raises `ValueError`."""
    import orjson  # only here: hero_moe.track, which imports this module, needs no orjson

    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:  # it also rejects NaN, numbers beyond the doubles and single surrogates
        return parse_json(line)


def json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (`FILE:LINE`, object) for every complete line; ignores an incomplete last line."""
    *lines, tail = read(path).split(b"\n")
    for number, line in enumerate([*lines, tail], start=1):
        where = f"{path}:{number}"
        if not line.strip():
            continue
        try:
            record = _parse_line(line)
        except ValueError as error:
            if number == len(lines) + 1:
                return
            raise InputError(f"{where}: invalid line ({error}), expected one JSON object") from error
        if not isinstance(record, dict):
            raise InputError(f"{where}: found {type(record).__name__}, expected one JSON object")
        yield where, record


def number(value: Any, where: str, key: str) -> float:
    """A number, or NaN for null. Raises `InputError`."""
    if value is None:
        return NAN
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{where}: {key}: found {json.dumps(value)[:40]}, expected a number or null")
    try:
        return float(value)
    except OverflowError as error:
        raise InputError(
            f"{where}: {key}: found an integer of {len(str(abs(value)))} digits, expected a double"
        ) from error


def doubles(values: list[Any]) -> array | None:
    """All values, NaN for null; None if any is no number or an integer beyond the doubles."""
    types = set(map(type, values))
    if not types <= NUMBERS_OR_NULL:
        return None
    try:
        return array(
            "d", [NAN if value is None else value for value in values] if NoneType in types else values
        )
    except OverflowError:
        return None


def numbers(values: list[Any], where: str, key: str) -> Sequence[float]:
    """`number` of every value."""
    found = doubles(values)
    return [number(value, where, key) for value in values] if found is None else found


def integer(record: dict[str, Any], where: str, key: str) -> int:
    """The integer at `key`. Raises `InputError`."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= INTEGER_BOUND:
        found = json.dumps(value)[:40] if key in record else "nothing"
        raise InputError(f"{where}: {key}: found {found}, expected an integer of 64 bits")
    return value
