"""Starts and resumes that are rejected, which change nothing in the run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from program import (
    CONFIGS,
    HERO,
    assert_exit_2,
    checkpoint,
    folder_bytes,
    hero,
    run_hero,
    training,
)


@pytest.mark.parametrize("given", ["flag", "file"])
def test_steps_may_not_end_before_the_checkpoint(copy: Path, tmp_path: Path, given: str) -> None:
    before = folder_bytes(copy)
    words: list[Any] = ["--train.steps=5"]
    if given == "file":
        words = ["--config", tmp_path / "shorter.toml"]
        words[1].write_text((copy / "config.toml").read_text().replace("\nsteps = 6\n", "\nsteps = 5\n"))
    result = hero("train", "--run", copy, "--resume", *words)
    assert_exit_2(result, f"train.steps: found 5, expected at least 6, the step of {checkpoint(copy, 6)}")
    assert folder_bytes(copy) == before


def test_resume_of_a_run_that_does_not_exist(tmp_path: Path) -> None:
    typo = tmp_path / "typo"
    assert_exit_2(hero("train", "--run", typo, "--resume"), f"{typo}: no such run to resume", "--data")
    assert not typo.exists()


def test_rejected_start_writes_nothing(data: Path, tmp_path: Path) -> None:
    """The corrected command starts the run."""
    run = tmp_path / "run"
    rejected = hero(*training(run, data, HERO, "--parallel.pipeline=2"))
    assert_exit_2(rejected, "parallel.pipeline: found 2, expected a divisor of the 1 process")
    assert not run.exists()
    run_hero(*training(run, data, HERO | {"train.steps": 1, "optim.warmup_steps": 1}))


def test_run_folder_in_use(copy: Path, data: Path) -> None:
    before = folder_bytes(copy)
    assert_exit_2(hero(*training(copy, data, HERO)), str(copy), "--resume")
    assert folder_bytes(copy) == before


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("--model.hidden_size=32", "model.hidden_size: 64 -> 32"),
        ("--router.kind=baseline", 'router.kind: "hero" -> "baseline"'),
        ("--train.seed=1", "train.seed: 1234 -> 1"),
        ("--train.micro_batch=1", "train.micro_batch: 2 -> 1"),
        ("--train.sequence=32", "train.sequence: 64 -> 32"),
        ("--router.window=2", "router.window: 0 -> 2"),
        ("--router.balance_loss=0.5", "router.balance_loss: 0.01 -> 0.5"),
    ],
)
def test_rejects_different_configuration(copy: Path, flag: str, named: str) -> None:
    before = folder_bytes(copy)
    assert_exit_2(hero("train", "--run", copy, "--resume", flag), str(copy / "config.toml"), named)
    assert folder_bytes(copy) == before


def test_rejects_different_configuration_file(copy: Path) -> None:
    assert_exit_2(
        hero("train", "--config", CONFIGS / "small-qwen3.toml", "--run", copy, "--resume"),
        str(copy / "config.toml"),
        "model.num_experts: 8 -> 32",
    )


def test_rejects_different_data(copy: Path, data: Path) -> None:
    assert_exit_2(hero("train", "--run", copy, "--data", f"{data}-valid", "--resume"), "--data", str(data))


@pytest.mark.parametrize("content", [None, b"", b"[model]\nhidden_si"], ids=["missing", "empty", "truncated"])
@pytest.mark.parametrize("words", [[], ["--resume"]], ids=["new", "resume"])
def test_damaged_configuration(data: Path, copy: Path, content: bytes | None, words: list[str]) -> None:
    """The folder does not count as new, and keeps its metrics."""
    file = copy / "config.toml"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    before = folder_bytes(copy)
    for logged in ("metrics.jsonl", "checkpoints"):
        result = hero("train", "--data", data, "--run", copy, *words)
        what = "not found" if content is None else "found a truncated file"
        assert_exit_2(result, f"{file}: {what}, expected", logged, "restore it, or pass another --run")
        assert folder_bytes(copy) == before
        (copy / "metrics.jsonl").unlink(missing_ok=True)
        before.pop("metrics.jsonl", None)
