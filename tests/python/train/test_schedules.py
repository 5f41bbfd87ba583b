"""Learning-rate schedules in training, and resumes that would bend the curve of completed steps."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from program import (
    assert_exit_2,
    checkpoint,
    deterministic_metrics,
    folder_bytes,
    hero,
    metrics,
    run_hero,
    training,
)

WARMUP, STEPS, LR, MIN_LR = 2, 10, 1e-3, 2e-4
RATES: dict[str, Any] = {
    "train.steps": STEPS,
    "optim.warmup_steps": WARMUP,
    "optim.lr": LR,
    "optim.min_lr": MIN_LR,
    "checkpoint.every": 5,
}
WSD = {"optim.schedule": "wsd", "optim.decay_steps": 3}


def decayed(x: float, shape: str) -> float:
    share = {"linear": 1 - x, "cosine": (1 + math.cos(math.pi * x)) / 2, "1-sqrt": 1 - math.sqrt(x)}[shape]
    return MIN_LR + (LR - MIN_LR) * share


def expected(step: int, schedule: str, decay: int, shape: str) -> float:
    if step <= WARMUP:
        return LR * step / WARMUP
    if schedule == "constant":
        return LR
    if schedule == "wsd":
        decay = decay or math.ceil(STEPS / 10)
        begin = STEPS - decay
    else:
        decay = decay or STEPS - WARMUP
        begin, shape = WARMUP, schedule
    return LR if step <= begin else decayed(min(1, (step - begin) / decay), shape)


@pytest.mark.parametrize(
    ("schedule", "decay", "shape"),
    [
        ("cosine", 0, "linear"),
        ("cosine", 4, "linear"),
        ("linear", 0, "linear"),
        ("linear", 20, "linear"),
        ("constant", 0, "linear"),
        ("wsd", 0, "linear"),
        ("wsd", 8, "linear"),
        ("wsd", 3, "cosine"),
        ("wsd", 3, "1-sqrt"),
    ],
)
def test_logged_rates(data: Path, tmp_path: Path, schedule: str, decay: int, shape: str) -> None:
    run = tmp_path / "run"
    options = {"optim.schedule": schedule, "optim.decay_steps": decay, "optim.decay_shape": shape}
    run_hero(*training(run, data, RATES | options))
    want = [expected(step, schedule, decay, shape) for step in range(1, STEPS + 1)]
    assert [line["lr"] for line in metrics(run)] == pytest.approx(want, rel=1e-12)


def trained(data: Path, tmp_path: Path, options: dict[str, Any], kept: int) -> Path:
    """A run whose latest checkpoint is that of step `kept`."""
    run = tmp_path / "run"
    run_hero(*training(run, data, RATES | options))
    if kept == 5:
        shutil.rmtree(checkpoint(run, STEPS))
    return run


@pytest.mark.parametrize(
    ("options", "kept", "steps"),
    [
        ({}, 5, 12),
        ({}, 5, 8),
        ({}, 10, 20),
        ({"optim.schedule": "linear"}, 5, 12),
        (WSD, 10, 20),  # after the decay
        (WSD | {"optim.decay_steps": 7}, 5, 12),  # inside the decay
        (WSD, 5, 6),  # the new decay would have begun
    ],
)
def test_rejects_another_curve(
    data: Path, tmp_path: Path, options: dict[str, Any], kept: int, steps: int
) -> None:
    run = trained(data, tmp_path, options, kept)
    before = folder_bytes(run)
    words = ["train", "--run", run, "--resume"]
    result = hero(*words, f"--train.steps={steps}")
    assert_exit_2(
        result,
        f"train.steps: found {steps}, expected {STEPS} as in {run / 'config.toml'}",
        f'optim.schedule = "{options.get("optim.schedule", "cosine")}"',
        "--optim.decay_steps",
        "optim.schedule=wsd",
        "--branch",
    )
    # A file is not an explicit request, even if it has optim.decay_steps.
    file = tmp_path / "longer.toml"
    file.write_text((run / "config.toml").read_text().replace(f"\nsteps = {STEPS}\n", f"\nsteps = {steps}\n"))
    assert_exit_2(hero(*words, "--config", file), f"train.steps: found {steps}, expected {STEPS}")
    assert folder_bytes(run) == before
    decay = 1 if steps > kept else 0
    run_hero(*words, f"--train.steps={steps}", f"--optim.decay_steps={decay}")
    assert [line["step"] for line in metrics(run)] == list(range(1, steps + 1))


@pytest.mark.parametrize(
    ("options", "kept", "steps"),
    [
        (WSD, 5, 20),
        (WSD, 5, 8),
        ({"optim.schedule": "constant"}, 10, 12),
        ({"optim.decay_steps": 8}, 10, 12),
        ({"optim.min_lr": LR}, 5, 12),
        ({"optim.warmup_steps": 5}, 5, 12),  # the decay has not begun
    ],
)
def test_extends_an_unchanged_curve(
    data: Path, tmp_path: Path, options: dict[str, Any], kept: int, steps: int
) -> None:
    """The run is the one that had this train.steps from the start."""
    run = trained(data, tmp_path, options, kept)
    run_hero("train", "--run", run, "--resume", f"--train.steps={steps}")
    whole = tmp_path / "whole"
    run_hero(*training(whole, data, RATES | options | {"train.steps": steps}))
    assert deterministic_metrics(run) == deterministic_metrics(whole)


def test_changed_schedule_on_resume(data: Path, tmp_path: Path) -> None:
    run = trained(data, tmp_path, {}, 5)
    run_hero("train", "--run", run, "--resume", "--train.steps=12", "--optim.schedule=constant")
    assert [line["lr"] for line in metrics(run)[5:]] == [LR] * 7
