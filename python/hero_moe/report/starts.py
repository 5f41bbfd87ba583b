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
    """The `--data` arguments, or a text for each phase."""
    data_hash: str
    """Of the sources' token files, shares and order, and of the phases: equal for equal data, whatever the paths."""
    tokenizer: str
    """SHA-256 of the tokenizer; empty if the data has none."""
    options: dict[str, tuple[Any, Any]]
    """Options that changed, with the values before and after."""
    changed_data: tuple[str, ...]
    """Token files that changed (`--data-changed`)."""
    changed_validation: tuple[str, ...] = ()
    """Files of validation data that changed."""
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
            data=_data_texts(record),
            data_hash=_data_hash(record),
            tokenizer=str(record["tokenizer_sha256"]),
            options={key: (value["from"], value["to"]) for key, value in record["options"].items()},
            changed_data=tuple(map(str, record["changed_data"])),
            changed_validation=tuple(map(str, record.get("changed_validation", ()))),
            parent=_parent(record["parent"], where) if "parent" in record else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise InputError(f"{where}: invalid line ({error!r}), expected a start of a run") from error


def _parent(record: dict[str, Any], where: str) -> Parent:
    return Parent(checkpoint=Path(record["checkpoint"]), step=integer(record, where, "step"))


def _data_texts(record: dict[str, Any]) -> tuple[str, ...]:
    """`--data`, or `to step 800: 0.7:a 0.3:b;` and `then c`."""
    if "phases" not in record:
        return tuple(map(str, record["data"]))
    *earlier, last = record["phases"]
    texts = [f"to step {phase['until_step']:,}: {' '.join(phase['blend'])};" for phase in earlier]
    return (*texts, ("then " if earlier else "") + " ".join(last["blend"]))


def _data_hash(record: dict[str, Any]) -> str:
    """Of each phase's sources in order: their shares, as training rounds them, and their files."""
    files = record["token_files"]
    phases = record.get("phases", [{"until_step": None, "blend": record["data"]}])
    lines = []
    for number, phase in enumerate(phases, 1):
        # The last phase ends with the run.
        lines.append(f"to {phase['until_step'] if number < len(phases) else None}")
        sources = [_split(word) for word in phase["blend"]]
        total = sum(weight for weight, _ in sources)
        for weight, prefix in sources:
            lines += [f"share {max(1, round(weight / total * 2**32))}", *_digests(prefix, files)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _split(word: str) -> tuple[float, str]:
    """Weight and prefix of `PREFIX` or `WEIGHT:PREFIX`."""
    match = re.match(r"([\d.eE+-]+):", word)
    try:
        return (float(match[1]), word[match.end() :]) if match else (1.0, word)
    except ValueError:  # a prefix such as 2026-01-02:web
        return 1.0, word


def _digests(prefix: str, files: dict[str, dict[str, Any]]) -> list[str]:
    """Digests of the source's token files, which may be those of its training split, and of its loss mask."""
    prefix = re.sub(r"\.(bin|idx)$", "", prefix)
    source = prefix if f"{prefix}.bin" in files else f"{prefix}-train"
    paths = [f"{source}{mask}{end}" for mask in ("", "-mask") for end in (".bin", ".idx")]
    found = [files[path] for path in paths if path in files]
    return [f"{entry['bytes']} {entry['sha256']}" for entry in found] or [prefix]
