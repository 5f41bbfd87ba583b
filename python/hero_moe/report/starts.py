"""The starts of a run, `starts.jsonl`: data, tokenizer, and what changed when it was resumed."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hero_moe.report.json_lines import InputError, integer, json_lines


@dataclass(frozen=True)
class Parent:
    """The checkpoint of another run from which a branch continues, after `step`."""

    checkpoint: Path
    step: int

    @property
    def run(self) -> Path:
        """The parent's run folder, or the checkpoint's own folder if it was outside of one."""
        inside = self.checkpoint.parent.name == "checkpoints"
        return self.checkpoint.parent.parent if inside else self.checkpoint


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
    parent: Parent | None = None
    """At the start of a branch (`--branch`)."""


def read_starts(path: Path) -> list[Start]:
    """The starts whose steps are part of the run, in order; empty without the file. A line replaces those
    before it with the same or a later step; a branch that resumed before its first own checkpoint keeps its
    parent. Raises `InputError`."""
    starts: list[Start] = []
    for where, record in json_lines(path) if path.exists() else ():
        start = _start(record, where)
        while starts and starts[-1].step >= start.step:
            start = replace(start, parent=starts.pop().parent)
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
            parent=_parent(record["parent"], where) if "parent" in record else None,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{where}: invalid line ({error!r}), expected a start of a run") from error


def _parent(record: dict[str, Any], where: str) -> Parent:
    return Parent(checkpoint=Path(record["checkpoint"]), step=integer(record, where, "step"))


def _data_hash(arguments: list[str], files: dict[str, dict[str, Any]]) -> str:
    weights = [match[1] if (match := re.match(r"([\d.eE+-]+):", word)) else "1" for word in arguments]
    digests = [f"{entry['bytes']} {entry['sha256']}" for _, entry in sorted(files.items())]
    return hashlib.sha256("\n".join([*weights, *digests]).encode()).hexdigest()
