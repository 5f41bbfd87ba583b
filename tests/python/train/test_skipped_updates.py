"""Losses and gradients that are not finite or too large: skipped updates, and the way back."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from program import (
    HERO,
    LONG,
    assert_resumes_alike,
    checkpoint,
    checkpoint_names,
    hero,
    metrics,
    run_hero,
    training,
)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_divergence_keeps_a_checkpoint_to_go_back_to(data: Path, tmp_path: Path, dtype: str) -> None:
    """The newest checkpoint has finite weights and leads to a loss that is not."""
    run = tmp_path / "run"
    settings = {"train.dtype": dtype, "train.steps": 4, "checkpoint.every": 2, "checkpoint.keep": 1}
    settings |= {"optim.schedule": "constant"}
    run_hero(*training(run, data, HERO | settings))
    words = ["train", "--run", run, "--resume", "--train.steps=30"]
    result = hero(*words, "--checkpoint.every=1", "--optim.lr=1e30")
    done = len(metrics(run))
    assert result.returncode == 1 and 5 <= done < 30
    good, poisoned = checkpoint(run, done - 1), checkpoint(run, done)
    assert checkpoint_names(run) == [good.name, poisoned.name]
    advice = f"; last good checkpoint: {good}; to continue from it, move {poisoned.name} to another folder"
    assert advice in result.stderr.splitlines()[-1]
    again = hero(*words)
    assert again.returncode == 1 and advice in again.stderr
    assert "pass --resume with a smaller --optim.lr or" in again.stderr
    if done == 5:  # the last good checkpoint is from before the change
        shutil.rmtree(poisoned)
        run_hero(*words, "--optim.lr=0.001")
        assert [line["step"] for line in metrics(run)] == list(range(1, 31))


def test_skips_a_limited_number_of_updates_that_are_not_finite(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = {"train.steps": 4, "checkpoint.every": 1, "checkpoint.keep": 1, "optim.schedule": "constant"}
    run_hero(*training(run, data, HERO | settings))
    flags = ["--train.steps=30", "--train.skip_nonfinite=3", "--optim.lr=1e30"]
    result = hero("train", "--run", run, "--resume", *flags)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert " after 3 skipped updates in a row; last good checkpoint: " in last
    lines = metrics(run)
    skipped = [line["skipped"] for line in lines]
    assert skipped == [0] * (len(lines) - 3) + [1, 2, 3]
    assert all(line["loss"] is None or line["grad_norm"] is None for line in lines[-3:])
    done = len(lines) - 3
    assert checkpoint_names(run) == [f"step-{done - 1:08d}", f"step-{done:08d}"]


SPIKES = LONG | {"train.steps": 110, "checkpoint.every": 70, "train.spike_skip": 0.1}


def test_bias_correction_counts_applied_updates(data: Path, tmp_path: Path) -> None:
    """An update after skipped ones is AdamW's with the number of updates in the moments (Kingma and Ba, 2015,
    algorithm 1)."""
    run = tmp_path / "run"
    settings = SPIKES | {
        "train.steps": 90,
        "checkpoint.every": 1,
        "checkpoint.keep": 12,
        "train.dtype": "fp64",
    }
    settings |= {"optim.schedule": "constant", "optim.weight_decay": 0.0, "optim.beta2": 0.999}
    run_hero(*training(run, data, settings))
    lines = metrics(run)
    skipped = [line["skipped"] for line in lines]
    step = max(step for step in range(80, 91) if skipped[step - 1] == skipped[step - 2] > 0)
    name = "model.layers.0.self_attn.o_proj.weight"
    before, after = (load_file(checkpoint(run, s) / "model.safetensors")[name] for s in (step - 1, step))
    moments = load_file(checkpoint(run, step) / "optimizer.safetensors")
    number = step - skipped[step - 1]
    mean = moments[f"exp_avg.{name}"] / (1 - 0.9**number)
    square = moments[f"exp_avg_sq.{name}"] / (1 - 0.999**number)
    expected = before - lines[step - 1]["lr"] * mean / (np.sqrt(square) + 1e-8)
    np.testing.assert_allclose(after, expected, rtol=1e-12, atol=1e-15)


def test_skipped_spikes_are_the_same_after_resume(data: Path, tmp_path: Path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    run_hero(*training(whole, data, SPIKES))
    skipped = [line["skipped"] for line in metrics(whole)]
    assert skipped[63] == 0 <= skipped[69] < skipped[109] < 46
    assert_resumes_alike(whole, halves, 110)
