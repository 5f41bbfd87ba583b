"""Lines of metrics.jsonl as they are written, as flat metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hero_moe.json_text import parse_json


def flatten(record: dict[str, Any]) -> dict[str, float]:
    """The metrics of a line: `loss`, `aux_losses/balance`, `layer_N/rho` for layer N of `layers`, from 1, and
    `norms/grad_norm/attention/i` for other lists, from 0. Null values are left out."""
    flat: dict[str, float] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{name}/{key}", inner)
        elif isinstance(value, list):
            for i, inner in enumerate(value):
                add(f"{name}/{i}", inner)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            flat[name] = value

    for name, value in record.items():
        if name == "layers" and isinstance(value, dict):
            for key, values in value.items():
                for number, inner in enumerate(values if isinstance(values, list) else [], start=1):
                    add(f"layer_{number}/{key}", inner)
        elif name != "step":
            add(name, value)
    return flat


class Follower:
    """Reads the complete lines that were appended to a metrics file since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = self._line = 0
        self._last = b""  # line before the offset: another one there means that the file was replaced
        self.damaged: list[str] = []
        """Where the lines without a valid step are, since the last call."""

    def read(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields (step, record). From the beginning again, if a resumed run cut the file back. Raises
        `OSError`."""
        self.damaged = []
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset - len(self._last))
            if file.read(len(self._last)) != self._last:
                self._offset = self._line = 0
                self._last = b""
                file.seek(0)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                self._line += 1
                self._last = line
                record = _record(line)
                if record:
                    yield record["step"], record
                elif line.strip():
                    self.damaged.append(f"{self._path}:{self._line}")


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = parse_json(line)
    except ValueError:
        return None
    step = record.get("step") if isinstance(record, dict) else None
    return record if isinstance(step, int) and not isinstance(step, bool) and step > 0 else None
