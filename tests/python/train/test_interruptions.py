"""Runs stopped by a signal or killed: resumed, they end with the bytes of an uninterrupted one."""

from __future__ import annotations

import fcntl
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from program import (
    HERO,
    LONG,
    assert_exit_2,
    assert_same_outcome,
    checkpoint_names,
    hero,
    metrics,
    run_hero,
    start_hero,
    steps_logged,
    training,
    wait_until,
)


@pytest.fixture(scope="module")
def uninterrupted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    run_hero(*training(run, data, LONG))
    return run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves(data: Path, tmp_path: Path, uninterrupted: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    process = start_hero(*training(run, data, LONG))
    wait_until(process, lambda: steps_logged(run) >= 5)
    process.send_signal(number)
    _, message = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    done = len(metrics(run))
    assert 5 <= done < 60
    assert checkpoint_names(run) == [f"step-{done:08d}"]
    last = message.splitlines()[-1]
    assert f"stopped by signal {int(number)} after step {done} of 60 and saved" in last
    assert "--resume" in last
    run_hero("train", "--run", run, "--resume")
    assert_same_outcome(run, uninterrupted, 60)


def test_repeated_signal_saves(data: Path, tmp_path: Path, uninterrupted: Path) -> None:
    """Some terminals and `timeout` send a signal twice."""
    run = tmp_path / "run"
    process = start_hero(*training(run, data, LONG))
    wait_until(process, lambda: steps_logged(run) >= 5)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.001)
    _, message = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT, message
    assert message.count("saving; press Ctrl-C again to stop without saving\n") == 1
    assert checkpoint_names(run) == [f"step-{len(metrics(run)):08d}"]
    run_hero("train", "--run", run, "--resume")
    assert_same_outcome(run, uninterrupted, 60)


def test_signal_between_micro_batches(data: Path, tmp_path: Path) -> None:
    """The step that a signal interrupts is discarded; the first one leaves a checkpoint of step 0."""
    settings = HERO | {"train.micro_batch": 1, "train.global_batch": 200, "train.steps": 2}
    whole, run = tmp_path / "whole", tmp_path / "run"
    run_hero(*training(whole, data, settings))
    process = start_hero(*training(run, data, settings))
    wait_until(process, lambda: (run / "metrics.jsonl").exists())
    process.send_signal(signal.SIGTERM)
    _, message = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, message
    assert "stopped by signal 15 after step 0 of 2 and saved" in message
    assert checkpoint_names(run) == ["step-00000000"]
    run_hero("train", "--run", run, "--resume")
    assert_same_outcome(run, whole, 2)


@pytest.mark.parametrize(
    ("saving", "kills"),
    [
        (False, 3),
        (True, 3),
        pytest.param(False, 30, marks=pytest.mark.long),
        pytest.param(True, 30, marks=pytest.mark.long),
    ],
)
def test_kill_at_any_moment(
    data: Path, tmp_path: Path, uninterrupted: Path, saving: bool, kills: int
) -> None:
    """`saving`: kills the process while it writes a checkpoint folder; otherwise at random times, including
    program start."""
    rng, run = random.Random(kills), tmp_path / "run"
    words = training(run, data, LONG | {"checkpoint.every": 1, "checkpoint.keep": 2}, "--resume")
    killed = unfinished = 0
    while killed < kills:
        before = steps_logged(run)
        process = start_hero(*words)
        if saving:
            wait_until(process, lambda at=before + rng.randint(1, 2): steps_logged(run) >= at)
            wait_until(process, lambda: any((run / "checkpoints").glob("*.tmp")))
            time.sleep(rng.uniform(0, 0.005))
        elif rng.random() < 0.3:
            time.sleep(rng.uniform(0, 0.5))
        else:
            wait_until(process, lambda at=before + 1: steps_logged(run) >= at)
            time.sleep(rng.uniform(0, 0.05))
        process.kill()
        process.communicate()
        if process.returncode == 0:  # it finished before the kill: start over
            assert_same_outcome(run, uninterrupted, 60)
            shutil.rmtree(run)
            continue
        assert process.returncode == -signal.SIGKILL
        killed += 1
        unfinished += any((run / "checkpoints").glob("*.tmp"))
    assert unfinished or not saving or kills < 30
    run_hero(*words)
    assert_same_outcome(run, uninterrupted, 60)
    assert checkpoint_names(run) == ["step-00000059", "step-00000060"]


def test_folder_is_locked_by_one_process(data: Path, tmp_path: Path) -> None:
    """A second process is rejected while one trains in the folder, and accepted afterwards."""
    run = tmp_path / "run"
    run.mkdir()
    with open(run / "lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert_exit_2(hero(*training(run, data, {})), "another process trains in this folder")
    run_hero(*training(run, data, {"train.steps": 2}))
