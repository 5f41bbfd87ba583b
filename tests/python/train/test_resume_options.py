"""Resume with changed options and changed data: what is accepted, recorded and rejected."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hero_moe.report.run_files import load_run
from program import (
    HERO,
    assert_exit_2,
    assert_same_outcome,
    checkpoint,
    deterministic_metrics,
    folder_bytes,
    hero,
    metrics,
    run_hero,
    training,
)
from ranks import run_ranks_checked


def starts(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "starts.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", ["baseline", "hero", "rmoe"])
def test_options_change_on_resume(data: Path, tmp_path: Path, kind: str) -> None:
    """The change applies from the step after the checkpoint, is recorded, and lasts."""
    run, halves = tmp_path / "run", tmp_path / "halves"
    settings = {
        "router.kind": kind,
        "train.dtype": "fp64",
        "train.micro_batch": 1,
        "train.steps": 4,
        "optim.min_lr": 0.0,
        "checkpoint.every": 2,
    }
    words = training(run, data, settings)
    run_hero(*words)
    before = deterministic_metrics(run)
    shutil.rmtree(checkpoint(run, 4))
    shutil.copytree(run, halves)
    flags = ["--optim.lr=0.002", "--optim.clip_norm=0.25"]
    result = run_hero("train", "--run", run, "--resume", *flags)
    assert f"{run}: from step 3: optim.lr: 0.001 -> 0.002\n" in result.stderr
    after = deterministic_metrics(run)
    assert after[:2] == before[:2] and after[2]["loss"] == before[2]["loss"]
    assert [line["lr"] for line in after[2:]] == pytest.approx([2 * b["lr"] for b in before[2:]], rel=1e-12)
    assert after[3]["loss"] != before[3]["loss"]
    first, second = starts(run)
    assert first | {"step": 2, "options": second["options"]} == second
    assert first["step"] == 0 and first["options"] == {} and first["changed_data"] == []
    assert second["options"] == {
        "optim.lr": {"from": 0.001, "to": 0.002},
        "optim.clip_norm": {"from": 1.0, "to": 0.25},
    }
    # The original command, whose file does not set the two options, keeps them.
    whole = shutil.copytree(run, tmp_path / "whole")
    shutil.rmtree(checkpoint(run, 4))
    run_hero(*words, "--resume")
    assert_same_outcome(run, whole, 4)
    assert starts(run)[2] == second
    reported = load_run(run, "run").starts
    assert [start.step for start in reported] == [0, 2], "the first resume at step 2 was discarded"
    assert reported[1].options == {"optim.lr": (0.001, 0.002), "optim.clip_norm": (1.0, 0.25)}
    if kind == "rmoe":
        return
    run_ranks_checked(["train", "--run", halves, "--resume", *flags], 2, tmp_path / "log")
    assert starts(halves) == starts(whole)
    for key in ("loss", "grad_norm", "lr"):
        expected = [line[key] for line in after]
        assert [line[key] for line in metrics(halves)] == pytest.approx(expected, rel=1e-9), key


def test_replaced_data(data: Path, tmp_path: Path) -> None:
    """One token in the middle of the file is another."""
    for file in data.parent.glob(f"{data.name}*"):
        shutil.copy(file, tmp_path)
    prefix, run = tmp_path / data.name, tmp_path / "run"
    tokens = tmp_path / f"{data.name}-train.bin"
    run_hero(*training(run, prefix, HERO | {"train.steps": 2, "optim.schedule": "constant"}))
    recorded = json.loads((checkpoint(run, 2) / "state.json").read_text())["token_files"]
    content = bytearray(tokens.read_bytes())
    assert recorded[str(tokens)]["bytes"] == len(content)
    content[len(content) // 2] ^= 1
    tokens.write_bytes(content)
    before = folder_bytes(run)
    words = ["train", "--run", run, "--resume", "--train.steps=3"]
    expected = f", expected {len(content)} bytes with sha256 {recorded[str(tokens)]['sha256']}"
    state = checkpoint(run, 2) / "state.json"
    assert_exit_2(hero(*words), f"{tokens}: found {len(content)} bytes with", f"{expected} as in {state}; ")
    assert folder_bytes(run) == before
    alone = hero(*words[:3], "--data-changed")
    assert_exit_2(alone, "--data-changed: found neither --resume nor --branch, expected one of them")
    assert f"{tokens}: found " in run_hero(*words, "--data-changed").stderr
    assert [line["changed_data"] for line in starts(run)] == [[], [str(tokens)]]
    run_hero(*words[:-1], "--train.steps=4")
    assert starts(run)[2]["changed_data"] == []
