"""The predicted memory of `hero cost` against the peak of a run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from program import SMALL, metrics, run_hero, training, write_megatron

MIB = 1 << 20
MEMORY = "resident memory of hero train on CPUs"
# Large enough to dominate memory: 50 to 130 MiB of weights and optimizer state, and the same of activations.
LARGE: dict[str, Any] = {
    "model.vocab_size": 4096,
    "model.hidden_size": 256,
    "model.num_hidden_layers": 4,
    "model.num_attention_heads": 8,
    "model.num_key_value_heads": 4,
    "model.head_dim": 32,
    "model.num_experts": 16,
    "model.num_experts_per_tok": 4,
    "model.moe_intermediate_size": 160,
    "model.max_position_embeddings": 256,
    "train.sequence": 256,
    "train.micro_batch": 8,
    "train.global_batch": 8,
    "train.steps": 2,
}
RUNS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "fp32": {"train.dtype": "fp32"},
    "recompute": {"train.recompute": True, "train.global_batch": 16},
}


def memory(folder: Path, settings: dict[str, Any]) -> tuple[float, dict[str, float]]:
    """Peak resident memory of a run, and its predicted parts [MiB]."""
    tokens = np.random.default_rng(0).integers(0, settings["model.vocab_size"], 20_000).tolist()
    write_megatron(folder / "data-train", [tokens])
    run_hero(*training(folder / "run", folder / "data", settings | {"router.kind": "hero"}))
    table = json.loads(run_hero("cost", "--config", folder / "run.toml", "--json").stdout)[MEMORY]
    return metrics(folder / "run")[-1]["peak_memory_mib"], {n: v["hero"] / MIB for n, v in table.items()}


@pytest.fixture(scope="module")
def process_memory(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Resident memory of the process without a model [MiB]. It depends on how many of the libraries' pages the
    kernel maps, thus on the machine."""
    found, predicted = memory(tmp_path_factory.mktemp("small"), SMALL | {"model.vocab_size": 256})
    return found - predicted["peak"] + predicted["program and libraries"]


@pytest.mark.parametrize("name", RUNS)
def test_predicted_memory_matches_a_run(name: str, process_memory: float, tmp_path: Path) -> None:
    """Tensors and workspace: within 10% of the peak."""
    found, predicted = memory(tmp_path, LARGE | RUNS[name])
    peak = predicted.pop("peak")
    assert sum(predicted.values()) == pytest.approx(peak)
    tensors = peak - predicted["program and libraries"]
    assert tensors == pytest.approx(found - process_memory, abs=0.10 * found)


def test_predicted_memory_of_the_process(process_memory: float) -> None:
    """Between half and twice the constant of the prediction, 150 MiB."""
    assert 75 < process_memory < 300
