"""The starts of a run, `starts.jsonl`: data, tokenizer, and what changed when it was resumed."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hero_moe.report.json_lines import InputError, integer, json_lines


@dataclass(frozen=True)
class Start:
    """One line: the run trained the steps after `step` with these inputs."""

    step: int
    data: tuple[str, ...]
    """The `--data` arguments."""
    data_hash: str
    """Of the token files and their weights: equal for equal data, whatever the paths."""
    tokenizer: str
    """SHA-256 of the tokenizer; empty if the data has none."""
    options: dict[str, tuple[Any, Any]]
    """Options that changed, with the values before and after."""
    changed_data: tuple[str, ...]
    """Token files that changed (`--data-changed`)."""


def read_starts(path: Path) -> list[Start]:
    """The starts whose steps are part of the run, in order; empty without the file. A line replaces those
    before it with the same or a later step. Raises `InputError`."""
    starts: list[Start] = []
    for where, record in json_lines(path) if path.exists() else ():
        start = _start(record, where)
        while starts and starts[-1].step >= start.step:
            starts.pop()
        starts.append(start)
    return starts


def _start(record: dict[str, Any], where: str) -> Start:
    try:
        return Start(
            step=integer(record, where, "step"),
            data=tuple(map(str, record["data"])),
            data_hash=_data_hash(record["data"], record["token_files"]),
            tokenizer=str(record["tokenizer_sha256"]),
            options={key: (value["from"], value["to"]) for key, value in record["options"].items()},
            changed_data=tuple(map(str, record["changed_data"])),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{where}: invalid line ({error!r}), expected a start of a run") from error


def _data_hash(arguments: list[str], files: dict[str, dict[str, Any]]) -> str:
    weights = [match[1] if (match := re.match(r"([\d.eE+-]+):", word)) else "1" for word in arguments]
    digests = [f"{entry['bytes']} {entry['sha256']}" for _, entry in sorted(files.items())]
    return hashlib.sha256("\n".join([*weights, *digests]).encode()).hexdigest()
