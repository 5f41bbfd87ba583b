"""Atomic writes of pages and figures."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a temporary file and renames it to `path`, so that readers never see partial content. Raises
    `OSError`."""
    data = content.encode("utf-8", errors="replace") if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
