"""The output files of a training run, and that saved models load in Hugging Face transformers."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hero_moe.report.layer_series import LAYER_SERIES
from program import (
    CONFIGS,
    DEEPSEEK,
    checkpoint,
    checkpoint_names,
    configuration_keys,
    deterministic_metrics,
    metrics,
    run_hero,
    tensor_bytes,
    training,
)

KEYS = (
    "step tokens loss lm_loss aux_losses lr grad_norm skipped step_ms tokens_per_second mfu peak_memory_mib "
    "max_expert_share layers"
).split()
LAYER_KEYS = (
    "max_expert_share max_over_mean entropy dropped rms_hidden rms_history rho history_variance_share"
).split()
LAYERS, EXPERTS, CHOSEN, STEPS, STEP_TOKENS = 3, 8, 2, 30, 128


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A baseline and a HERO run with the same seed, from the project's configuration overlays."""
    folder = tmp_path_factory.mktemp("runs")
    folders = {}
    for kind in ("baseline", "hero"):
        folders[kind] = folder / kind
        settings = {"train.steps": STEPS, "checkpoint.every": 10, "checkpoint.keep": 2, "optim.lr": 3e-3}
        run_hero(*training(folders[kind], data, settings, "--config", CONFIGS / f"{kind}.toml"))
    return folders


@pytest.mark.parametrize("kind", ["baseline", "hero"])
def test_metrics(runs: dict[str, Path], kind: str) -> None:
    lines = metrics(runs[kind])
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    for line in lines:
        assert list(line) == KEYS
        assert line["tokens"] == line["step"] * STEP_TOKENS
        assert set(line["aux_losses"]) == {"balance", "z", "coupling"}
        # The metric is the mean over layers; the loss contains the sum times the factor.
        expected = line["lm_loss"] + 1e-2 * LAYERS * line["aux_losses"]["balance"]
        assert line["loss"] == pytest.approx(expected, abs=2e-6)
        assert line["max_expert_share"] == max(line["layers"]["max_expert_share"])
        assert CHOSEN / EXPERTS <= line["max_expert_share"] <= 1
        for key in ("grad_norm", "step_ms", "tokens_per_second", "mfu", "peak_memory_mib"):
            assert line[key] > 0
        assert list(line["layers"]) == LAYER_KEYS
        for key, values in line["layers"].items():
            of_history = key in ("rms_history", "rho", "history_variance_share")
            blind = [0] if kind == "hero" else range(LAYERS)
            for layer in range(LAYERS):
                if of_history and layer in blind:
                    assert values[layer] is None
                else:
                    assert math.isfinite(values[layer])
            assert len(values) == LAYERS
        assert all(0 < e <= math.log(EXPERTS) + 1e-9 for e in line["layers"]["entropy"])
        assert line["layers"]["dropped"] == [0] * LAYERS


@pytest.mark.parametrize("kind", ["baseline", "hero"])
def test_loss_decreases(runs: dict[str, Path], kind: str) -> None:
    losses = [line["lm_loss"] for line in metrics(runs[kind])]
    assert losses[0] == pytest.approx(math.log(512), abs=0.2)  # 500 pieces, rounded up to 512
    assert losses[-1] < losses[0] - 1.5


def test_learning_rate(runs: dict[str, Path]) -> None:
    rates = [line["lr"] for line in metrics(runs["hero"])]
    assert rates[0] == pytest.approx(1.5e-3) and rates[1] == pytest.approx(3e-3)  # two steps of warm-up
    for step, rate in enumerate(rates[2:], 3):
        cosine = 1 + math.cos(math.pi * (step - 2) / (STEPS - 2))
        assert rate == pytest.approx(1e-4 + 0.5 * (3e-3 - 1e-4) * cosine, rel=1e-12)


def test_routing_snapshots(runs: dict[str, Path]) -> None:
    lines = [json.loads(line) for line in (runs["hero"] / "routing.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(2, STEPS + 1, 2))
    for line in lines:
        shares = np.array(line["expert_share"])
        assert shares.shape == (LAYERS, EXPERTS)
        assert shares.sum(1) == pytest.approx(np.full(LAYERS, CHOSEN), abs=1e-12)


@pytest.mark.parametrize("kind", ["baseline", "hero"])
def test_tensorboard_reads_the_log(runs: dict[str, Path], kind: str) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(runs[kind] / "tb"), size_guidance={"scalars": 0})
    board.Reload()
    lines = metrics(runs[kind])
    for tag, key in (("loss/total", "loss"), ("loss/lm", "lm_loss"), ("optim/grad_norm", "grad_norm")):
        events = board.Scalars(tag)
        assert [e.step for e in events] == list(range(1, STEPS + 1))
        assert [e.value for e in events] == pytest.approx([line[key] for line in lines], rel=1e-6)
    # Every value of a layer that is not null, under its JSON key.
    values = {
        f"layers_{key}/{layer}": value
        for key, row in lines[-1]["layers"].items()
        for layer, value in enumerate(row, 1)
        if value is not None
    }
    assert {tag for tag in board.Tags()["scalars"] if tag.startswith("layers_")} == set(values)
    for tag, value in values.items():
        assert board.Scalars(tag)[-1].value == pytest.approx(value, rel=1e-6), tag
    assert ("layers_rho/2" in values) == (kind == "hero") and "layers_rho/1" not in values


def test_reports_read_every_layer_metric(runs: dict[str, Path]) -> None:
    assert tuple(metrics(runs["hero"])[0]["layers"]) == LAYER_SERIES


def keys(table: dict[str, Any], above: str = "") -> set[str]:
    """The dotted names of all values."""
    found: set[str] = set()
    for key, value in table.items():
        found |= keys(value, f"{above}{key}.") if isinstance(value, dict) else {above + key}
    return found


def test_configuration_is_complete(runs: dict[str, Path]) -> None:
    shown = set(configuration_keys())
    written = tomllib.loads((runs["hero"] / "config.toml").read_text())
    assert keys(written) == shown
    assert len(shown) > 60
    assert written["router"]["kind"] == "hero"
    assert written["model"]["vocab_size"] == 512
    assert written["optim"]["lr"] == 3e-3


def test_own_configuration_gives_the_same_run(runs: dict[str, Path], data: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    run_hero("train", "--config", runs["hero"] / "config.toml", "--data", data, "--run", again)
    assert deterministic_metrics(again) == deterministic_metrics(runs["hero"])
    assert tensor_bytes(again, STEPS) == tensor_bytes(runs["hero"], STEPS)


@pytest.mark.parametrize(("keep", "left"), [(0, [2, 4, 5]), (1, [4, 5]), (2, [4, 5])])
def test_keeps_the_latest_checkpoints(data: Path, tmp_path: Path, keep: int, left: list[int]) -> None:
    """And the newest one with a finite loss in the step after it, which the last one has not."""
    run = tmp_path / "run"
    settings = {
        "train.steps": 5,
        "checkpoint.every": 2,
        "checkpoint.keep": keep,
        "model.num_hidden_layers": 1,
    }
    run_hero(*training(run, data, settings))
    assert checkpoint_names(run) == [f"step-{step:08d}" for step in left]
    state = json.loads((checkpoint(run, 5) / "state.json").read_text())
    assert (state["step"], state["tokens"], state["samples"]) == (5, 5 * STEP_TOKENS, 10)


def test_hero_folder_contains_router_settings(runs: dict[str, Path]) -> None:
    from safetensors import safe_open

    folder = checkpoint(runs["hero"], STEPS)
    assert json.loads((folder / "config.json").read_text())["hero_router"] == {
        "window": None, "scale": True, "eps": 1e-6, "detach": True, "history": "stage", "stages": [0, 0, 0],
    }  # fmt: skip
    with safe_open(folder / "model.safetensors", "np") as tensors:
        for layer in range(LAYERS):
            gate = tensors.get_slice(f"model.layers.{layer}.mlp.gate.weight")
            assert gate.get_shape() == [EXPERTS, 64 + layer * EXPERTS]
            assert gate.get_dtype() == "F32"


FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen3MoeForCausalLM": {},
    "Qwen3MoeForCausalLM, tied, weights not normalized": {
        "model.tie_word_embeddings": True,
        "model.norm_topk_prob": False,
    },
    "DeepseekV3ForCausalLM": DEEPSEEK | {"model.routed_scaling_factor": 1.5},
    "DeepseekV3ForCausalLM, groups, no query rank, halves": DEEPSEEK
    | {
        "model.q_lora_rank": 0,
        "model.n_group": 4,
        "model.topk_group": 2,
        "model.rope_interleave": False,
        "model.n_shared_experts": 2,
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_computes_the_same_loss(data: Path, tmp_path: Path, family: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    run = tmp_path / "run"
    # Large initial weights and learning rate: logits far from uniform expose errors.
    settings = {"train.dtype": "fp32", "optim.lr": 1e-2, "model.initializer_range": 0.1}
    run_hero(*training(run, data, settings | FAMILIES[family]))
    run_hero("eval", run, "--data", data)
    ours = json.loads((run / "eval.json").read_text())["datasets"][0]

    config = transformers.AutoConfig.from_pretrained(checkpoint(run, 6))
    assert config.architectures == [family.split(",")[0]]
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (64, 3, 512)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint(run, 6), dtype=torch.float32, output_loading_info=True
    )
    assert type(model).__name__ == family.split(",")[0]
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]

    tokens = np.fromfile(f"{data}-valid.bin", "<u2").astype(np.int64)
    total = 0.0
    for begin in range(0, len(tokens) - 1, 64):
        window = torch.from_numpy(tokens[begin : begin + 65])
        with torch.no_grad():
            logits = model.eval()(window[None, :-1]).logits[0].double()
        total += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
    assert ours["tokens"] == len(tokens) - 1
    assert ours["loss"] == pytest.approx(total / (len(tokens) - 1), abs=1e-5)
