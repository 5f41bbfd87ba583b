"""A file system that is soon full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mounts a tmpfs of this size (mount's syntax) at a new folder; skips the test where that is not
    permitted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        failed = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"mount: {error}")
    if failed.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {failed.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
