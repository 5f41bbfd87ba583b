"""Same numbers: a model trained by several processes is the model that one process trains, whatever the layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from program import DEEPSEEK, metrics, ran, training
from ranks import ran_together

MODEL: dict[str, Any] = {
    "router.kind": "hero",
    "router.balance": "sequence",
    "router.balance_loss": 1e-2,
    "router.z_loss": 1e-3,
    "model.num_hidden_layers": 4,
    "train.sequence": 32,
    "train.micro_batch": 1,
    "train.global_batch": 8,
    "train.dtype": "fp64",
    "optim.warmup_steps": 5,
    "parallel.timeout": 60,
}
# Layers 1 and 2, 3 and 4 see each other's routing; or every layer sees all before it.
STAGES = MODEL | {"router.stages": 2}
GLOBAL = MODEL | DEEPSEEK | {"router.history": "global", "router.balance": "global", "model.num_hidden_layers": 5}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "data 2": (2, {"parallel.data": 2}),
    "data 4": (4, {}),
    "pipeline 2": (2, {"parallel.pipeline": 2}),
    "pipeline 4": (4, {"parallel.pipeline": 4}),
    "pipeline 2, interleaved": (
        2,
        {"parallel.pipeline": 2, "parallel.schedule": "interleaved", "parallel.chunks": 2},
    ),
    "pipeline 2, zero bubble": (2, {"parallel.pipeline": 2, "parallel.schedule": "zero_bubble"}),
    "pipeline 4, zero bubble": (4, {"parallel.pipeline": 4, "parallel.schedule": "zero_bubble"}),
    "expert 2": (2, {"parallel.expert": 2}),
    "expert 4": (4, {"parallel.expert": 4}),
    "data 4, expert 2": (4, {"parallel.expert": 2}),
    "data 2, pipeline 2": (4, {"parallel.pipeline": 2}),
    "pipeline 2, expert 2": (4, {"parallel.pipeline": 2, "parallel.expert": 2}),
    "one process, recomputation": (1, {"train.recompute": True}),
    "pipeline 2, expert 2, recomputation": (
        4,
        {"parallel.pipeline": 2, "parallel.expert": 2, "train.recompute": True},
    ),
    "one process, accumulation by 4": (1, {"train.micro_batch": 4}),
    "data 2, accumulation by 2": (2, {"train.micro_batch": 2}),
}
STEPS = 50


def trained(folder: Path, name: str, data: Path, settings: dict[str, Any], ranks: int) -> list[dict[str, Any]]:
    run = folder / name.replace(" ", "-").replace(",", "")
    words = training(run, data, settings | {"train.steps": STEPS})
    if ranks == 1:
        ran(*words)
    else:
        ran_together(words, ranks, run.with_suffix(".log"))
    return metrics(run)


def column(lines: list[dict[str, Any]], key: str) -> np.ndarray:
    return np.array([line[key] for line in lines])


def relative(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.abs(a - b) / np.abs(b)


@pytest.fixture(scope="module", params=["stages", "global"])
def model(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"stages": STAGES, "global": GLOBAL}[request.param]


@pytest.fixture(scope="module")
def alone(model: dict[str, Any], data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return trained(tmp_path_factory.mktemp("alone"), "alone", data, model, 1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_same_numbers_in_fp64(
    layout: str, model: dict[str, Any], alone: list[dict[str, Any]], data: Path, tmp_path: Path
) -> None:
    ranks, settings = LAYOUTS[layout]
    lines = trained(tmp_path, "run", data, model | settings, ranks)
    assert len(lines) == STEPS
    for key in ("loss", "lm_loss", "grad_norm"):
        difference = relative(column(lines, key), column(alone, key))
        assert difference[:20].max() < 1e-9, key
        assert difference.max() < 1e-6, key
