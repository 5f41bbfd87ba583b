"""Every parallel layout gives the same results as one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from program import DEEPSEEK, metrics, training
from ranks import run_on

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
    "optim.warmup_steps": 1,
    "parallel.timeout": 60,
}
# History within stages (layers 1 and 2, 3 and 4), or global history.
STAGES = MODEL | {"router.stages": 2}
GLOBAL = (
    MODEL | DEEPSEEK | {"router.history": "global", "router.balance": "global", "model.num_hidden_layers": 5}
)
# Deep enough for two chunks on each of four ranks.
DEEP = STAGES | {"model.num_hidden_layers": 8, "router.history": "global"}
# Layers of a stage share the weights of a GRU.
RMOE = STAGES | {"router.kind": "rmoe", "router.state_size": 6}
FP32 = STAGES | {"train.dtype": "fp32"}
# Attention and positions within documents, with grouped-query and with latent attention.
MASK, POSITIONS = {"train.document_mask": True}, {"train.document_positions": True}
DOCUMENTS = STAGES | MASK | POSITIONS
LATENT_DOCUMENTS = GLOBAL | MASK | POSITIONS
MODELS = {
    "stages": STAGES,
    "global": GLOBAL,
    "deep": DEEP,
    "rmoe": RMOE,
    "fp32": FP32,
    "documents": DOCUMENTS,
    "latent documents": LATENT_DOCUMENTS,
}
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
    "pipeline 4, interleaved": (
        4,
        {"parallel.pipeline": 4, "parallel.schedule": "interleaved", "parallel.chunks": 2},
    ),
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


def trained(
    folder: Path, name: str, data: Path, settings: dict[str, Any], ranks: int, steps: int = STEPS
) -> list[dict[str, Any]]:
    run = folder / name.replace(" ", "-")
    run_on(training(run, data, settings | {"train.steps": steps}), ranks, run.with_suffix(".log"))
    return metrics(run)


def column(lines: list[dict[str, Any]], key: str) -> np.ndarray:
    return np.array([line[key] for line in lines])


def relative(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.abs(a - b) / np.abs(b)


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], list[dict[str, Any]]]:
    """Metrics of one process by model and number of steps, computed on first use."""
    folder = tmp_path_factory.mktemp("alone")

    @cache
    def lines(model: str, steps: int) -> list[dict[str, Any]]:
        return trained(folder, f"{model} {steps}", data, MODELS[model], 1, steps)

    return lines


EIGHT_CHUNKS = "pipeline 4, interleaved"
WHOLE_STAGES = ("data 4", "pipeline 2, zero bubble", "pipeline 2, expert 2, recomputation")
SHALLOW = [layout for layout in LAYOUTS if layout != EIGHT_CHUNKS]


def cases() -> list[Any]:
    """Models, layouts and steps: a subset in the fast tests, all with fifty steps in the long tests."""
    some = ("pipeline 4", "pipeline 2, interleaved", "pipeline 2, expert 2")
    quick = [("stages", layout) for layout in SHALLOW] + [("global", layout) for layout in some]
    quick += [("rmoe", layout) for layout in WHOLE_STAGES]
    quick += [("documents", layout) for layout in (*WHOLE_STAGES, "one process, accumulation by 4")]
    quick += [("latent documents", layout) for layout in ("data 2, pipeline 2", "one process, recomputation")]
    all_layouts = [(model, layout) for model in ("stages", "global") for layout in SHALLOW]
    long = [
        pytest.param(*case, STEPS, marks=pytest.mark.long) for case in [*all_layouts, ("deep", EIGHT_CHUNKS)]
    ]
    return [pytest.param(*case, 20) for case in [*quick, ("deep", EIGHT_CHUNKS)]] + long


@pytest.mark.parametrize(("model", "layout", "steps"), cases())
def test_same_results_in_fp64(
    model: str,
    layout: str,
    steps: int,
    alone: Callable[[str, int], list[dict[str, Any]]],
    data: Path,
    tmp_path: Path,
) -> None:
    ranks, settings = LAYOUTS[layout]
    lines = trained(tmp_path, "run", data, MODELS[model] | settings, ranks, steps)
    assert len(lines) == steps
    for key in ("loss", "lm_loss", "grad_norm"):
        difference = relative(column(lines, key), column(alone(model, steps), key))
        assert difference[:20].max() < 1e-9, key
        assert difference.max() < 1e-6, key


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_a_stage_without_trainable_weights(schedule: str, data: Path, tmp_path: Path) -> None:
    """Only routers are trained, and the first stage has only dense layers."""
    model = MODEL | {"model.mlp_only_layers": [0, 1], "train.trainable": "routers"}
    pipeline = {"parallel.pipeline": 2, "parallel.schedule": schedule}
    lines, alone = (
        trained(tmp_path, f"of {ranks}", data, model | settings, ranks, 4)
        for ranks, settings in ((2, pipeline), (1, {}))
    )
    for key in ("loss", "grad_norm"):
        assert relative(column(lines, key), column(alone, key)).max() < 1e-9, key


@pytest.mark.long
@pytest.mark.parametrize("layout", SHALLOW)
def test_same_results_in_fp32(
    layout: str, alone: Callable[[str, int], list[dict[str, Any]]], data: Path, tmp_path: Path
) -> None:
    """Rounding alone changes the gradient norm by about 1e-5 after tens of steps."""
    ranks, settings = LAYOUTS[layout]
    lines = trained(tmp_path, "run", data, MODELS["fp32"] | settings, ranks)
    for key in ("loss", "grad_norm"):
        assert relative(column(lines, key), column(alone("fp32", STEPS), key))[0] < 1e-5, key
    assert relative(column(lines, "loss"), column(alone("fp32", STEPS), "loss")).max() < 1e-4


def test_documents_change_the_results(data: Path, tmp_path: Path) -> None:
    """Each option does; with the mask, positions change only rounding, because rotary embedding depends on
    their differences."""
    options = {"neither": {}, "mask": MASK, "positions": POSITIONS, "both": MASK | POSITIONS}
    losses = {name: trained(tmp_path, name, data, STAGES | o, 1, 1)[0]["loss"] for name, o in options.items()}
    assert losses["both"] == pytest.approx(losses["mask"], rel=1e-12)
    for name in ("mask", "positions"):
        assert losses[name] != pytest.approx(losses["neither"], rel=1e-6), name


def test_global_history_is_independent_of_the_number_of_stages(data: Path, tmp_path: Path) -> None:
    """M_l = l - 1 in every layer: the loss of the first step is bit-identical, also in bf16."""
    model = GLOBAL | {"train.dtype": "bf16", "train.global_batch": 4, "model.num_hidden_layers": 5}
    losses = set()
    for ranks in (1, 2, 4):
        lines = trained(tmp_path, f"of {ranks}", data, model | {"parallel.pipeline": ranks}, ranks, steps=2)
        losses.add(lines[0]["lm_loss"])
        routed = lines[0]["ranks"]["history_mib"] if ranks > 1 else 0
        # Per micro-batch, the bf16 slots [T, E] of all layers before each boundary.
        layers = {1: 0, 2: 2, 4: 1 + 2 + 3}[ranks]
        assert routed == pytest.approx(4 * layers * 32 * 8 * 2 / 2**20)
    assert len(losses) == 1


def test_truncated_history_changes_the_model(data: Path, tmp_path: Path) -> None:
    """Sending only the top entries needs fewer bytes; later stages see the rest as uniform mass."""
    model = GLOBAL | {"train.dtype": "fp32", "parallel.pipeline": 2}
    full, cut = (
        trained(tmp_path, f"top {top}", data, model | {"parallel.history_top": top}, 2, steps=3)
        for top in (0, 2)
    )
    assert cut[0]["lm_loss"] != full[0]["lm_loss"]
    assert cut[0]["lm_loss"] == pytest.approx(full[0]["lm_loss"], rel=1e-2)
    # 8 probabilities of 4 bytes against 2 of 4 + 2 bytes
    assert cut[0]["ranks"]["history_mib"] / full[0]["ranks"]["history_mib"] == pytest.approx(12 / 32)
