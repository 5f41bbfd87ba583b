"""Checkpoints that cannot be written: full disks, file size limits, obstacles."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from program import (
    HERO,
    LONG,
    checkpoint,
    checkpoint_names,
    folder_bytes,
    hero,
    run_hero,
    start_hero,
    steps_logged,
    training,
    wait_until,
)
from small_disk import mounted_disk


def assert_failed_save(result: subprocess.CompletedProcess[str], folder: Path, reason: str) -> None:
    """Exit status 1 and a last line that names the checkpoint and the reason."""
    assert result.returncode == 1, result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"hero: cannot save checkpoint {folder}: ")
    assert reason in last and last.endswith("earlier checkpoints are intact; two saves in a row failed")
    assert result.stderr.count("warning: cannot save checkpoint ") == 1


def test_file_size_limit(copy: Path) -> None:
    """A write that fails in the middle of a checkpoint, as on a full disk."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))

    before = folder_bytes(checkpoint(copy, 6))
    longer = ["--train.steps=7", "--optim.decay_steps=4"]
    result = hero("train", "--run", copy, "--resume", *longer, preexec_fn=limit)
    assert_failed_save(result, checkpoint(copy, 7), "File too large")
    assert checkpoint_names(copy) == ["step-00000002", "step-00000004", "step-00000006"]
    assert folder_bytes(checkpoint(copy, 6)) == before
    run_hero("train", "--run", copy, "--resume")
    assert checkpoint_names(copy)[-1] == "step-00000007"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path / "disk", "10m") as folder:
        yield folder


def test_full_disk(data: Path, small_disk: Path) -> None:
    run = small_disk / "run"
    # In the background a save could fill the disk while a log is written.
    settings = {"train.steps": 20, "checkpoint.every": 1, "checkpoint.asynchronous": False}
    result = hero(*training(run, data, HERO | settings))
    left = checkpoint_names(run)
    assert 2 <= len(left) < 20
    assert_failed_save(result, checkpoint(run, len(left) + 2), "No space left on device")
    assert left == [f"step-{step:08d}" for step in range(1, len(left) + 1)]
    shutil.rmtree(checkpoint(run, 1))
    shutil.rmtree(checkpoint(run, 2))
    run_hero("train", "--run", run, "--resume", "--checkpoint.keep=1")
    assert checkpoint_names(run) == ["step-00000019", "step-00000020"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_training_continues_after_one_failed_save(data: Path, tmp_path: Path, asynchronous: bool) -> None:
    run = tmp_path / "run"
    run.mkdir()
    obstacle = run / "checkpoints"
    obstacle.write_text("a file where the folder belongs")
    settings = {"train.steps": 250, "checkpoint.every": 100, "checkpoint.asynchronous": asynchronous}
    process = start_hero(*training(run, data, LONG | settings))
    wait_until(process, lambda: steps_logged(run) >= 120)
    obstacle.unlink()  # before the next save
    _, message = process.communicate(timeout=300)
    assert process.returncode == 0, message
    failed = f"warning: cannot save checkpoint {checkpoint(run, 100)}: "
    assert message.count(failed) == 1 and "a second failure in a row ends the run" in message
    assert checkpoint_names(run) == ["step-00000200", "step-00000250"]
