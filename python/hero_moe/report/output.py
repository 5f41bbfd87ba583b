"""Files that pages and figures are written to."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes `content` beside `path` and renames it, so that no reader ever sees half a file. Raises `OSError`."""
    data = content.encode("utf-8", errors="replace") if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
