"""A branch whose start was interrupted: the same command starts again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from program import (
    assert_exit_2,
    checkpoint,
    checkpoint_names,
    deterministic_metrics,
    folder_bytes,
    hero,
    run_hero,
    start_hero,
    wait_until,
)

MARK = "branch.unfinished"


def branch(parent: Path, run: Path) -> list[Any]:
    flags = ["--train.steps=6", "--checkpoint.every=2"]
    return ["train", "--branch", f"{parent}@4", "--run", run, *flags]


def assert_starts_again(parent: Path, run: Path, tmp_path: Path) -> None:
    run_hero(*branch(parent, run))
    run_hero(*branch(parent, tmp_path / "whole"))
    assert not (run / MARK).exists()
    assert checkpoint_names(run) == ["step-00000004", "step-00000006"]
    assert deterministic_metrics(run) == deterministic_metrics(tmp_path / "whole")
    assert (run / "starts.jsonl").read_text().count("\n") == 1
    for step in (4, 6):
        assert folder_bytes(checkpoint(run, step)) == folder_bytes(checkpoint(tmp_path / "whole", step))


def test_killed_during_the_copy(finished: Path, tmp_path: Path) -> None:
    for attempt in range(40):
        run = tmp_path / f"run-{attempt}"
        process = start_hero(*branch(finished, run))
        wait_until(process, (run / MARK).exists)
        process.kill()
        process.communicate()
        if (run / MARK).exists() and not (run / "config.toml").exists():
            break
    else:
        pytest.fail("no process was killed before its start was complete")
    resumed = hero("train", "--run", run, "--resume")
    assert_exit_2(resumed, f"{run}/config.toml: not found", "repeat the command with --branch")
    assert_starts_again(finished, run, tmp_path)


@pytest.mark.parametrize("state", ["marked", "copying", "copied", "recorded"])
def test_every_state(finished: Path, tmp_path: Path, state: str) -> None:
    """Between two system calls that change the folder."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "lock").touch()
    (run / MARK).write_text("somewhere\n")
    if state == "copying":
        unfinished = run / "checkpoints" / "step-00000004.tmp"
        unfinished.mkdir(parents=True)
        (unfinished / "model.safetensors").write_bytes(b"half")
    if state in ("copied", "recorded"):
        shutil.copytree(checkpoint(finished, 4), checkpoint(run, 2))  # another one than now
    if state == "recorded":
        shutil.copy(finished / "starts.jsonl", run)
    assert_starts_again(finished, run, tmp_path)


def test_killed_after_the_configuration(finished: Path, tmp_path: Path) -> None:
    """The run exists, and resumes."""
    run = tmp_path / "run"
    run_hero(*branch(finished, run))
    (run / MARK).write_text("somewhere\n")
    shutil.rmtree(checkpoint(run, 6))
    assert_exit_2(hero(*branch(finished, run)), "--run: found ", f" in {run}, expected a new or empty folder")
    run_hero("train", "--run", run, "--resume")
    assert not (run / MARK).exists() and checkpoint_names(run)[-1] == "step-00000006"


def test_foreign_files_stay(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / MARK).write_text("somewhere\n")
    (run / "notes.txt").write_text("mine")
    assert_exit_2(hero(*branch(finished, run)), f"--run: found notes.txt in {run}, expected a new or empty")
    assert sorted(file.name for file in run.iterdir()) == [MARK, "notes.txt"]
    (run / "notes.txt").unlink()
    (run / MARK).unlink()
    shutil.copytree(checkpoint(finished, 4), checkpoint(run, 4))  # a run that lost its configuration
    assert_exit_2(hero(*branch(finished, run)), f"--run: found checkpoints in {run}")
    assert checkpoint_names(run) == ["step-00000004"]
