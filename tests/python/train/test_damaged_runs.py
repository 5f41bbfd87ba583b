"""Resume of a run with damaged or old files."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from program import (
    assert_exit_2,
    assert_same_outcome,
    checkpoint,
    checkpoint_names,
    deterministic_metrics,
    folder_bytes,
    hero,
    run_hero,
    tensor_bytes,
)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("name", "corrupt", "found"),
    [
        ("model.safetensors", flip, "altered"),
        ("optimizer.safetensors", halve, "truncated"),
        ("state.json", Path.unlink, "missing"),
        ("manifest.json", halve, "altered or truncated"),
    ],
)
def test_damaged_checkpoint_is_skipped(
    copy: Path, finished: Path, name: str, corrupt: Callable[[Path], None], found: str
) -> None:
    file = checkpoint(copy, 6) / name
    corrupt(file)
    result = run_hero("train", "--run", copy, "--resume")
    assert f"warning: {file}: {found}" in result.stderr
    assert f"resuming from the newest intact checkpoint, {checkpoint(copy, 4)}" in result.stderr
    assert checkpoint_names(copy)[2:] == ["step-00000006", "step-00000006.damaged"]
    assert_same_outcome(copy, finished, 6)


def test_rejects_a_run_without_an_intact_checkpoint(copy: Path) -> None:
    for step in (2, 4, 6):
        flip(checkpoint(copy, step) / "model.safetensors")
    before = folder_bytes(copy / "checkpoints")
    newest = str(checkpoint(copy, 6) / "model.safetensors")
    assert_exit_2(hero("train", "--run", copy, "--resume"), newest, "no checkpoint of the run is intact")
    assert folder_bytes(copy / "checkpoints") == before


def test_checkpoint_of_an_older_version(copy: Path, finished: Path) -> None:
    """Without skipped updates and digests of the token files."""
    shutil.rmtree(checkpoint(copy, 6))
    folder = checkpoint(copy, 4)
    state = json.loads((folder / "state.json").read_text())
    assert state.pop("skips") == {
        "skipped": 0, "nonfinite_in_a_row": 0, "losses": [], "gradient_norms": [],
    }  # fmt: skip
    assert len(state.pop("token_files")) == 2
    text = json.dumps(state)
    (folder / "state.json").write_text(text)
    files = json.loads((folder / "manifest.json").read_text())["files"]
    files["state.json"] = {"bytes": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    digest = hashlib.sha256(json.dumps(files, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    manifest = {"files": files, "sha256": digest}
    (folder / "manifest.json").write_text(json.dumps(manifest, sort_keys=True, indent=2) + "\n")
    assert "warning" not in run_hero("train", "--run", copy, "--resume").stderr
    assert_same_outcome(copy, finished, 6)


def test_incomplete_last_line(copy: Path, finished: Path) -> None:
    shutil.rmtree(checkpoint(copy, 6))
    log = copy / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:-40])
    run_hero("train", "--run", copy, "--resume")
    assert_same_outcome(copy, finished, 6)


def test_damaged_line(copy: Path, finished: Path) -> None:
    """The line of a step before the checkpoint is lost; the rest of the run is the same."""
    shutil.rmtree(checkpoint(copy, 6))
    log = copy / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    lines[1] = bytes(len(lines[1]) - 1) + b"\n"
    log.write_bytes(b"".join(lines))
    before = log.read_bytes()
    result = run_hero("train", "--run", copy, "--resume")
    assert f"warning: {log}: removed 1 damaged lines, the first is line 2" in result.stderr
    assert (copy / "metrics.jsonl.damaged").read_bytes() == before
    whole = deterministic_metrics(finished)
    assert deterministic_metrics(copy) == [whole[0], *whole[2:]]
    assert tensor_bytes(copy, 6) == tensor_bytes(finished, 6)
