"""Checkpoints of several processes are layout-independent model folders that any layout can resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from program import assert_exit_2, checkpoint, hero, metrics, run_hero, training
from ranks import free_port, rank_log, run_on, run_ranks, start

MODEL: dict[str, Any] = {
    "router.kind": "hero",
    "router.stages": 2,
    "router.balance": "global",
    "model.num_hidden_layers": 4,
    "train.sequence": 32,
    "train.micro_batch": 1,
    "train.global_batch": 4,
    "train.steps": 16,
    "optim.warmup_steps": 4,
    "optim.lr": 1e-3,
    "optim.min_lr": 1e-3,
    "parallel.timeout": 60,
}
# Steps, ranks and layout flags: each entry resumes from the previous one.
CHAIN: list[tuple[int, int, list[str]]] = [
    (4, 4, ["--parallel.pipeline=2", "--parallel.expert=2"]),
    (8, 1, ["--parallel.pipeline=1", "--parallel.expert=1"]),
    (12, 4, ["--parallel.data=4"]),
    (16, 4, ["--parallel.data=0", "--parallel.pipeline=4", "--parallel.schedule=zero_bubble"]),
]


def go(run: Path, data: Path, settings: dict[str, Any], ranks: int, *more: Any) -> None:
    run_on(training(run, data, MODEL | settings, *more), ranks, run.with_suffix(".log"))


@pytest.mark.parametrize(("dtype", "close"), [("fp64", 1e-9), ("bf16", 3e-3)])
def test_run_resumes_in_other_layouts(dtype: str, close: float, data: Path, tmp_path: Path) -> None:
    alone, run = tmp_path / "alone", tmp_path / "run"
    go(alone, data, {"train.dtype": dtype}, 1)
    for steps, ranks, flags in CHAIN:
        go(run, data, {"train.dtype": dtype}, ranks, "--resume", *flags, f"--train.steps={steps}")
        assert checkpoint(run, steps).is_dir()
    for key in ("loss", "tokens"):
        assert [line[key] for line in metrics(run)] == pytest.approx(
            [line[key] for line in metrics(alone)], rel=close
        ), key
    # A checkpoint of several ranks opens like any model folder.
    held_out = run_hero("eval", checkpoint(run, 16), "--data", data, "--device", "cpu").stdout
    assert "perplexity" in held_out


def test_detects_ranks_with_different_settings(data: Path, tmp_path: Path) -> None:
    words = training(tmp_path / "run", data, MODEL)
    log = tmp_path / "log"
    processes = start(words, 1, log, WORLD_SIZE="2", MASTER_PORT=(port := str(free_port())))
    other = tmp_path / "other"
    processes += start([*words, "--optim.lr=0.5"], 1, other, RANK="1", WORLD_SIZE="2", MASTER_PORT=port)
    assert [process.wait(60) for process in processes] == [2, 2]
    for text in (rank_log(log, 0), rank_log(other, 0)):
        assert "optim.lr: found 0.5 on rank 1" in text
        assert "expected 0.001 as on rank 0" in text


def test_detects_ranks_with_different_folders(data: Path, tmp_path: Path) -> None:
    port, processes, logs = str(free_port()), [], []
    for rank in range(2):
        folder = tmp_path / f"run-{rank}"
        logs.append(tmp_path / f"log-{rank}")
        changes = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": port}
        processes += start(training(folder, data, MODEL), 1, logs[-1], **changes)
    assert [process.wait(60) for process in processes] == [2, 2]
    for log in logs:
        assert f"--run: found {tmp_path}/run-1 on rank 1" in rank_log(log, 0)
    assert not (tmp_path / "run-0" / "config.toml").exists()


def test_rejects_layouts_that_do_not_fit(data: Path, tmp_path: Path) -> None:
    for flag, message in (
        ("--parallel.pipeline=3", "parallel.pipeline: found 3, expected a divisor of the 2 processes"),
        ("--parallel.data=4", "parallel.data: found 4, expected 2"),
        ("--train.global_batch=3", "train.global_batch: found 3"),
    ):
        log = tmp_path / f"log{flag}"
        words = training(tmp_path / f"run{flag}", data, MODEL, flag)
        assert run_ranks(words, 2, log) == [2, 2]
        assert message in rank_log(log, 0)
    alone = hero(*training(tmp_path / "one", data, MODEL), "--parallel.pipeline=2")
    assert_exit_2(alone, "parallel.pipeline: found 2")
