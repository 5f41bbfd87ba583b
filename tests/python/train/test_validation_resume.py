"""Validation across resumes, and the checkpoint with the lowest loss."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from program import (
    HERO,
    assert_resumes_alike,
    assert_same_outcome,
    checkpoint,
    checkpoint_names,
    deterministic_metrics,
    folder_bytes,
    metrics,
    run_hero,
    start_hero,
    training,
    valid_losses,
)
from ranks import run_on, start

VALID = HERO | {"eval.every": 2, "eval.batches": 3}


def test_resume(data: Path, tmp_path: Path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    run_hero(*training(whole, data, VALID | {"checkpoint.every": 2, "checkpoint.keep_best": True}))
    assert_resumes_alike(whole, halves, 6)
    assert (halves / "best.json").read_bytes() == (whole / "best.json").read_bytes()


LONG_VALIDATION = HERO | {
    "eval.every": 2,
    "train.steps": 4,
    "checkpoint.every": 2,
    "checkpoint.keep_best": True,
}


def wait_for_validation(run: Path) -> None:
    """Waits until step 1 is logged and step 2, which takes milliseconds, is being validated."""
    limit = time.monotonic() + 60
    while not (run / "metrics.jsonl").exists() or not metrics(run):
        assert time.monotonic() < limit
        time.sleep(0.01)
    time.sleep(0.3)


@pytest.mark.parametrize("ranks", [1, 2])
def test_stopped_validation_is_repeated(ranks: int, data: Path, tmp_path: Path) -> None:
    settings = LONG_VALIDATION | {
        "train.micro_batch": 1,
        "eval.data": [f"{name}={data}-train" for name in "abcdefgh"],
    }
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run_on(training(whole, data, settings), ranks, whole.with_suffix(".log"))
    words = training(stopped, data, settings)
    processes: list[subprocess.Popen[Any]] = (
        [start_hero(*words)] if ranks == 1 else start(words, ranks, stopped.with_suffix(".log"))
    )
    wait_for_validation(stopped)
    processes[-1].send_signal(signal.SIGINT)
    assert [p.wait(60) for p in processes] == [130] * ranks
    assert [line["step"] for line in metrics(stopped)] == [1, 2]
    assert valid_losses(stopped) == {}
    assert json.loads((checkpoint(stopped, 2) / "state.json").read_text())["validation"]["interrupted"]
    run_on(["train", "--run", stopped, "--resume"], ranks, stopped.with_suffix(".log"))
    assert deterministic(stopped) == deterministic(whole)
    for step in (2, 4):
        assert folder_bytes(checkpoint(stopped, step)) == folder_bytes(checkpoint(whole, step))
    assert (stopped / "best.json").read_bytes() == (whole / "best.json").read_bytes()


def deterministic(run: Path) -> list[dict[str, Any]]:
    """Metrics without times; of `ranks`, only the deterministic ones are compared elsewhere."""
    return [{k: v for k, v in line.items() if k != "ranks"} for line in deterministic_metrics(run)]


def test_stopped_validation_of_the_last_step(data: Path, tmp_path: Path) -> None:
    settings = LONG_VALIDATION | {
        "train.steps": 2, "train.micro_batch": 1,
        "eval.data": [f"{name}={data}-train" for name in "abcdefgh"],
    }  # fmt: skip
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run_hero(*training(whole, data, settings))
    process = start_hero(*training(stopped, data, settings))
    wait_for_validation(stopped)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert valid_losses(stopped) == {}
    run_hero("train", "--run", stopped, "--resume")
    assert_same_outcome(stopped, whole, 2)
    assert folder_bytes(checkpoint(stopped, 2)) == folder_bytes(checkpoint(whole, 2))
    assert "nothing to do" in run_hero("train", "--run", stopped, "--resume").stderr


def test_keep_best(data: Path, tmp_path: Path) -> None:
    """The learning rate of the second part is too large: the best checkpoint is the last one of the first."""
    run = tmp_path / "run"
    settings = VALID | {"checkpoint.every": 2, "checkpoint.keep": 1, "checkpoint.keep_best": True}
    result = run_hero(*training(run, data, settings))
    losses = valid_losses(run)
    assert min(losses, key=losses.__getitem__) == 6
    best = {"step": 6, "valid_loss": losses[6], "checkpoint": "checkpoints/step-00000006"}
    assert json.loads((run / "best.json").read_text()) == best
    assert f"lowest validation loss {losses[6]:.4f} after step 6: {checkpoint(run, 6)}" in result.stderr
    result = run_hero(
        "train", "--run", run, "--resume", "--train.steps=14", "--optim.decay_steps=14", "--optim.lr=3"
    )
    losses = valid_losses(run)
    assert list(losses) == [2, 4, 6, 8, 10, 12, 14]
    assert min(losses, key=losses.__getitem__) == 6
    assert json.loads((run / "best.json").read_text()) == best
    # The newest verified one, the last one, and the best.
    assert checkpoint_names(run) == ["step-00000006", "step-00000012", "step-00000014"]
    assert str(checkpoint(run, 6)) in result.stderr.splitlines()[-1]
    # Without the option, it is deleted like any other.
    run_hero("train", "--run", run, "--resume", "--train.steps=16", "--checkpoint.keep_best=false")
    assert checkpoint_names(run) == ["step-00000014", "step-00000016"]
    assert not (run / "best.json").exists()


def test_best_of_other_validation_data_does_not_count(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_hero(*training(run, data, VALID | {"checkpoint.every": 2, "checkpoint.keep_best": True}))
    words = ("--train.steps=8", "--optim.decay_steps=8", "--optim.lr=0.3", f"--eval.data=train={data}-train")
    run_hero("train", "--run", run, "--resume", *words)
    assert json.loads((run / "best.json").read_text())["step"] == 8
    assert metrics(run)[-1]["valid"].keys() == {"train"}
