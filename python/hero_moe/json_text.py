"""Reads JSON that may be damaged or hostile."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def parse_json(
    text: str | bytes,
    *,
    parse_constant: Callable[[str], Any] | None = None,
    parse_float: Callable[[str], Any] | None = None,
    parse_int: Callable[[str], Any] | None = None,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """`json.loads`. Raises `ValueError` for invalid JSON, and where json.loads would raise `RecursionError`."""
    try:
        return json.loads(
            text,
            parse_constant=parse_constant,
            parse_float=parse_float,
            parse_int=parse_int,
            object_pairs_hook=object_pairs_hook,
        )
    except RecursionError as error:
        raise ValueError("found values nested too deeply") from error
