"""Expert parallelism with maximally uneven load."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from program import checkpoint, metrics, run_hero, training
from ranks import run_ranks_checked

MODEL: dict[str, Any] = {
    "router.kind": "hero",
    "router.balance_loss": 0.0,
    "train.dtype": "fp64",
    "train.sequence": 32,
    "train.micro_batch": 1,
    "train.global_batch": 4,
    "optim.warmup_steps": 1,
    "parallel.timeout": 60,
}


def test_one_rank_receives_all_tokens(data: Path, tmp_path: Path) -> None:
    """Zero routers tie, and ties select the first two experts, which are on rank 0."""
    first = tmp_path / "first"
    run_hero(*training(first, data, MODEL | {"train.steps": 1}))
    start = tmp_path / "start"
    shutil.copytree(checkpoint(first, 1), start)
    weights = load_file(start / "model.safetensors")
    for name, values in weights.items():
        if name.endswith(".mlp.gate.weight"):
            weights[name] = np.zeros_like(values)
    save_file(weights, start / "model.safetensors")
    (start / "manifest.json").unlink()
    settings = MODEL | {"train.steps": 3}
    alone, run = tmp_path / "alone", tmp_path / "run"
    run_hero(*training(alone, data, settings, "--init-from", start))
    words = training(run, data, settings | {"parallel.expert": 4}, "--init-from", start)
    run_ranks_checked(words, 4, tmp_path / "log")
    assert metrics(run)[0]["max_expert_share"] == 1
    for key in ("loss", "grad_norm", "max_expert_share"):
        expected = [line[key] for line in metrics(alone)]
        assert [line[key] for line in metrics(run)] == pytest.approx(expected, rel=1e-9), key
