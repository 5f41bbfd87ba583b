"""RUN/track-BACKEND.json: the tracker's run and the last step that it has, so that tracking continues there."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hero_moe.json_text import parse_json
from hero_moe.report.json_lines import InputError, read


def digest(record: dict[str, Any]) -> str:
    """SHA-256 of a line of metrics.jsonl, however it is formatted."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


@dataclass
class State:
    project: str
    name: str
    id: str = ""
    step: int = 0
    record: str = ""
    """Digest of the metrics of that step; empty: unknown."""
    config: dict[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Replaces the file durably. Raises `OSError`."""
        temporary = path.with_name(path.name + ".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(asdict(self), file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def load_state(path: Path, project: str | None, name: str | None) -> State | None:
    """None if there is no file. Raises `InputError` for an invalid file and for another project or name."""
    if not path.exists():
        return None
    try:
        content = parse_json(read(path))
        state = State(**content)
        valid = all(isinstance(text, str) and text for text in (state.project, state.name, state.id))
        valid = valid and isinstance(state.step, int) and isinstance(state.record, str)
        if not valid or not isinstance(state.config, dict):
            raise ValueError("a key has a wrong value")
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{path}: invalid ({error}), expected a file of hero_moe.track; remove it to start a new run"
        ) from error
    for option, given, own in (("--project", project, state.project), ("--name", name, state.name)):
        if given not in (None, own):
            raise InputError(
                f"{option}: found {given}, expected {own}, with which {path} continues; remove it to start a new run"
            )
    return state
