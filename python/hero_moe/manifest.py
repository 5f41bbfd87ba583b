"""Checks a model folder against its `manifest.json`, as src/checkpoint/manifest.cpp does for the program."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from hero_moe.json_text import parse_json


def check_manifest(folder: Path) -> None:
    """Checks the sizes of all files in the manifest and the hashes of the model's; a folder without a manifest
    passes. The optimizer's files may be missing.

    Raises:
        ValueError: naming the first missing, truncated or altered file, with the found and expected value.
    """
    path = folder / "manifest.json"
    if not path.exists():
        return
    text = path.read_bytes()
    files = _files(text)
    if files is None:
        raise ValueError(
            f"{path}: altered or truncated: found {len(text)} bytes that do not match the hash in the file, "
            "expected the manifest as saved"
        )
    for name, entry in files.items():
        _check_file(folder / name, entry["bytes"], entry["sha256"])


def _files(text: bytes) -> dict[str, Any] | None:
    """The files of a manifest, or None if the program did not write it."""
    try:
        content = parse_json(text)
        files: dict[str, Any] = content["files"]
        plain = json.dumps(files, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        intact = content["sha256"] == hashlib.sha256(plain.encode()).hexdigest()
    except (ValueError, KeyError, TypeError):
        return None
    return files if intact else None


def _check_file(file: Path, size: int, sha256: str) -> None:
    optional = file.name.startswith("optimizer")
    if not file.is_file():
        if optional:
            return
        raise ValueError(f"{file}: missing, expected a file of {size} bytes")
    found = file.stat().st_size
    if found != size:
        what = "truncated" if found < size else "altered"
        raise ValueError(f"{file}: {what}: found {found} bytes, expected {size}")
    if optional:
        return
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != sha256:
        raise ValueError(f"{file}: altered: found sha256 {digest}, expected {sha256}")
