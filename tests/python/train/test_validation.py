"""Validation during training: it changes nothing else, and agrees with `hero eval` in every layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from program import (
    DEEPSEEK,
    HERO,
    checkpoint,
    deterministic_metrics,
    metrics,
    run_hero,
    tensor_bytes,
    training,
    valid_losses,
    write_megatron,
)
from ranks import run_ranks_checked

VALID = HERO | {"eval.every": 2, "eval.batches": 3}


KEYS = ("valid_loss", "valid")


def without_validation(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in KEYS} for line in deterministic_metrics(run)]


def evaluated(run: Path, *data: Any, batch: int = 2) -> dict[str, float]:
    """Losses by `hero eval` of the newest checkpoint, by the name that it gives to a data set."""
    run_hero("eval", run, "--data", *data, "--batch", batch)
    return {entry["name"]: entry["loss"] for entry in json.loads((run / "eval.json").read_text())["datasets"]}


VARIANTS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "moving bias": DEEPSEEK,
    "jitter, capacity": {"router.jitter": 0.1, "router.capacity_factor": 1.0},
    "forced balance, R_cp": {"router.force_balance": True, "router.coupling_loss": 1e-2},
    "global balance, recompute": {"router.balance": "global", "train.recompute": True},
    "norms": {"train.norms_every": 2},
    "rmoe": {"router.kind": "rmoe"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_is_the_same_without_validation(variant: str, data: Path, tmp_path: Path) -> None:
    runs = []
    for name, more in (("with", {}), ("without", {"eval.every": 0, "eval.batches": 0})):
        runs.append(tmp_path / name)
        run_hero(*training(runs[-1], data, VALID | VARIANTS[variant] | more))
    assert tensor_bytes(runs[0], 6) == tensor_bytes(runs[1], 6)
    assert without_validation(runs[0]) == without_validation(runs[1])
    assert list(valid_losses(runs[0])) == [2, 4, 6] and valid_losses(runs[1]) == {}


LAYOUT_MODEL = HERO | {
    "router.stages": 2,
    "router.coupling_loss": 1e-2,
    "router.eval_capacity_factor": 1.25,
    "model.num_hidden_layers": 4,
    "train.sequence": 32,
    "train.micro_batch": 1,
    "train.global_batch": 4,
    "train.steps": 3,
    "train.dtype": "fp64",
    "optim.warmup_steps": 1,
    "parallel.timeout": 60,
    "eval.every": 2,
}


# With an expert bias, which is updated after every step.
LAYOUT_DEEPSEEK = LAYOUT_MODEL | DEEPSEEK | {"model.num_hidden_layers": 5, "router.history": "global"}


LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "data 2": (2, {}),
    "data 4": (4, {}),
    "expert 2": (2, {"parallel.expert": 2}),
    "expert 4": (4, {"parallel.expert": 4}),
    "pipeline 2": (2, {"parallel.pipeline": 2}),
    "pipeline 4": (4, {"parallel.pipeline": 4}),
    "zero bubble": (2, {"parallel.pipeline": 2, "parallel.schedule": "zero_bubble"}),
    "interleaved": (
        2,
        {"parallel.pipeline": 2, "parallel.schedule": "interleaved", "parallel.chunks": 2},
    ),
    "pipeline 2, expert 2": (4, {"parallel.pipeline": 2, "parallel.expert": 2}),
}


@pytest.fixture(scope="module")
def sets(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two data sets: the held-out half, and one of five windows of 32 tokens that leaves ranks without work."""
    tokens = np.fromfile(data.with_name("corpus-train.bin"), "<u2")[:140]
    prefix = tmp_path_factory.mktemp("sets") / "short"
    write_megatron(prefix, [tokens.tolist()])
    return [f"held-out={data}", str(prefix)]


@pytest.fixture(scope="module")
def alone(data: Path, sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The runs of one process by model."""
    runs = {}
    for name, model in (("stages", LAYOUT_MODEL), ("deepseek", LAYOUT_DEEPSEEK)):
        runs[name] = tmp_path_factory.mktemp("alone") / name
        run_hero(*training(runs[name], data, model | {"eval.data": sets}))
    return runs


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", ["stages", "deepseek"])
def test_layouts(
    model: str, layout: str, alone: dict[str, Path], data: Path, sets: list[str], tmp_path: Path
) -> None:
    ranks, settings = LAYOUTS[layout]
    common = LAYOUT_MODEL if model == "stages" else LAYOUT_DEEPSEEK
    run = tmp_path / "run"
    run_ranks_checked(
        training(run, data, common | settings | {"eval.data": sets}), ranks, run.with_suffix(".log")
    )
    found = [line for line in metrics(run) if "valid" in line]
    expected = [line for line in metrics(alone[model]) if "valid" in line]
    assert [line["step"] for line in found] == [line["step"] for line in expected] == [2, 3]
    for mine, theirs in zip(found, expected):
        assert list(mine["valid"]) == ["held-out", "short"]
        assert mine["valid"] == pytest.approx(theirs["valid"], rel=1e-9, abs=0)
        assert mine["valid_loss"] == pytest.approx(theirs["valid_loss"], rel=1e-9, abs=0)


@pytest.mark.parametrize("layout", ["data 2", "expert 2", "interleaved", "zero bubble"])
def test_training_of_several_ranks_is_the_same(
    layout: str, data: Path, sets: list[str], tmp_path: Path
) -> None:
    ranks, settings = LAYOUTS[layout]
    runs = []
    for name, every in (("with", 1), ("without", 0)):
        runs.append(tmp_path / name)
        more = {"train.dtype": "bf16", "eval.every": every, "eval.data": sets if every else []}
        words = training(runs[-1], data, LAYOUT_MODEL | settings | more)
        run_ranks_checked(words, ranks, runs[-1].with_suffix(".log"))
    tensors = [{p.name: p.read_bytes() for p in checkpoint(run, 3).glob("*.safetensors")} for run in runs]
    assert len(tensors[0]) >= 2 and tensors[0] == tensors[1]
    assert [line["loss"] for line in metrics(runs[0])] == [line["loss"] for line in metrics(runs[1])]


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_equals_hero_eval(dtype: str, data: Path, tmp_path: Path) -> None:
    """With options that apply only to training."""
    run = tmp_path / "run"
    names = [f"trained={data}-train", f"{data}"]
    run_hero(*training(run, data, HERO | {
        "train.dtype": dtype, "eval.every": 4, "eval.data": names, "router.capacity_factor": 0.5,
        "router.force_balance": True, "router.jitter": 0.2, "train.steps": 5,
    }))  # fmt: skip
    last = metrics(run)[-1]
    losses = evaluated(run, f"{data}-train", f"{data}-valid")
    assert last["valid"] == {"trained": losses["corpus-train"], "corpus": losses["corpus-valid"]}
    entries = json.loads((run / "eval.json").read_text())["datasets"]
    mean = sum(e["loss"] * e["tokens"] for e in entries) / sum(e["tokens"] for e in entries)
    assert last["valid_loss"] == pytest.approx(mean, rel=1e-12)
    assert list(valid_losses(run)) == [4, 5]


def test_capacity_of_evaluation(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_hero(*training(run, data, HERO | {"eval.every": 6, "router.eval_capacity_factor": 0.5}))
    # Capacity applies to a forward pass: of train.micro_batch windows, or --batch.
    assert metrics(run)[-1]["valid_loss"] == evaluated(run, data)["corpus-valid"]
    assert metrics(run)[-1]["valid_loss"] != evaluated(run, data, batch=5)["corpus-valid"]


def test_the_whole_history_crosses_pipeline_boundaries(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = {"parallel.pipeline": 2, "parallel.history_top": 2, "train.dtype": "fp32", "eval.every": 6}
    words = training(run, data, HERO | {"router.history": "global"} | settings)
    run_ranks_checked(words, 2, run.with_suffix(".log"))
    assert metrics(run)[-1]["valid_loss"] == pytest.approx(evaluated(run, data)["corpus-valid"], rel=1e-6)


def test_number_of_batches(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = HERO | {"eval.every": 6, "eval.batches": 2, "train.micro_batch": 2, "train.global_batch": 4}
    run_hero(*training(run, data, settings))
    tokens = np.fromfile(data.with_name("corpus-valid.bin"), "<u2")[: 8 * 64 + 1]
    write_megatron(tmp_path / "first", [tokens.tolist()])
    assert metrics(run)[-1]["valid"] == {"corpus": evaluated(run, tmp_path / "first")["first"]}


def test_tensorboard_and_progress(data: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    result = run_hero(*training(run, data, VALID | {"eval.data": [f"a={data}", f"b={data}-train"]}))
    board = EventAccumulator(str(run / "tb"))
    board.Reload()
    for tag, key in (("loss/valid", None), ("valid/a", "a"), ("valid/b", "b")):
        lines = [line for line in metrics(run) if "valid" in line]
        assert [e.step for e in board.Scalars(tag)] == [2, 4, 6]
        expected = [line["valid"][key] if key else line["valid_loss"] for line in lines]
        assert [e.value for e in board.Scalars(tag)] == pytest.approx(expected, rel=1e-6)
    assert f"valid {metrics(run)[-1]['valid_loss']:.4f}" in result.stderr.splitlines()[-1]
