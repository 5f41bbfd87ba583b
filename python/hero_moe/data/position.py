"""PREFIX.position.json: the progress and the options of a `tokenize` run.

Replaced atomically after every commit of the token files; resuming from it gives the same bytes as an
uninterrupted run. It remains after completion, so that repeating the command does nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hero_moe.data.errors import DataError
from hero_moe.data.readers import Place
from hero_moe.data.sources import Source
from hero_moe.data.token_writer import write_atomically
from hero_moe.json_text import parse_json

FORMAT = "hero data position 1"
SKIP_REASONS = ("missing", "wrong", "empty", "invalid")


@dataclass
class Position:
    """`options`: everything that determines the output; `stage` is "reading", "ended" (the token files are
    complete but have temporary names) or "complete"; `in_source`: records of the current source, those
    without the field, and a description of the first of these; `writer`: the state from
    `TokenWriter.commit`."""

    options: dict[str, Any]
    sources: list[list[Any]]  # [path, bytes] of every part
    stage: str = "reading"
    source: int = 0
    place: Place = Place()
    records: int = 0
    # Skipped records by reason; the field name is a JSON key.
    left_out: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SKIP_REASONS, 0))
    in_source: list[Any] = field(default_factory=lambda: [0, 0, ""])
    writer: dict[str, Any] | None = None

    def save(self, path: str) -> None:
        text = json.dumps(
            {"format": FORMAT, **asdict(self), "place": list(self.place)}, ensure_ascii=False, indent=1
        )
        write_atomically(path, text.encode() + b"\n")


def source_list(sources: Sequence[Source]) -> list[list[Any]]:
    """The files by absolute path, with their sizes."""
    return [
        [os.path.abspath(part), size] for source in sources for part, size in zip(source.parts, source.sizes)
    ]


def load_position(path: str, options: Mapping[str, Any], sources: Sequence[Source]) -> Position | None:
    """The position in a file, None if there is no file. Raises `DataError` for an invalid file, and for
    different options or sources."""
    if not os.path.isfile(path):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            saved = parse_json(file.read())
        if saved.pop("format", None) != FORMAT:
            raise ValueError(f'expected "format": "{FORMAT}"')
        position = Position(**saved)
        position.place = Place(*position.place)
        _check(position)
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: invalid ({error}) (--restart starts over)") from error
    hint = "(the same options resume; --restart starts over)"
    for name in sorted({*position.options, *options}):
        was, now = position.options.get(name), options.get(name)
        if was != now:
            raise DataError(f"{path}: {name} was {_short(was)} at the start, found {_short(now)} {hint}")
    now_sources = source_list(sources)
    for was, now in zip(position.sources, now_sources):
        if was != now:
            raise DataError(
                f"{path}: the source {was[0]} of {was[1]} bytes has changed, "
                f"found {now[0]} of {now[1]} bytes {hint}"
            )
    if len(position.sources) != len(now_sources):
        raise DataError(
            f"{path}: started with {len(position.sources)} source files, found {len(now_sources)} {hint}"
        )
    return position


def _check(position: Position) -> None:
    """Raises `ValueError` or `TypeError` unless the values have the types of a saved position."""
    written = position.stage != "reading"
    checks = {
        "options": isinstance(position.options, dict),
        "sources": isinstance(position.sources, list)
        and all(isinstance(part, list) and len(part) == 2 for part in position.sources),
        "stage": position.stage in ("reading", "ended", "complete"),
        "source": isinstance(position.source, int) and 0 <= position.source <= len(position.sources),
        "place": all(isinstance(number, int) and number >= 0 for number in position.place),
        "records": isinstance(position.records, int),
        "left_out": isinstance(position.left_out, dict) and position.left_out.keys() == set(SKIP_REASONS),
        "in_source": isinstance(position.in_source, list) and len(position.in_source) == 3,
        "writer": _is_writer_state(position.writer) or (position.writer is None and not written),
    }
    if wrong := [name for name, valid in checks.items() if not valid]:
        raise ValueError(f"found no valid {wrong[0]}")


def _is_writer_state(value: Any) -> bool:
    """Whether a value may be from `TokenWriter.commit`."""
    if not isinstance(value, dict) or not {"documents", "splits", "held"} <= value.keys():
        return False
    splits = value["splits"]
    return isinstance(splits, dict) and all(
        isinstance(counts, dict) and all(isinstance(count, int) for count in counts.values())
        for counts in splits.values()
    )


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
