"""Parity: transformers' models in the program, and the program's models in transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from bf16_errors import check_bf16
from hf_compare import assert_close, checkpoint_tensors, load_strict, not_empty, program_logits, selection
from hf_models import (
    PLAIN,
    VARIANTS,
    class_of,
    configuration,
    random_ids,
    random_model,
    read_config,
)
from program import DEEPSEEK, checkpoint, run_hero, training

pytestmark = pytest.mark.usefixtures("one_thread")

SEQUENCES, LENGTH = 2, 40  # longer than the original positions of the yarn configurations


@dataclass
class Case:
    """A transformers model and the program's results for it."""

    model: PreTrainedModel
    folder: Path
    ids: Tensor
    said: dict[str, Tensor]


@pytest.fixture(scope="module", params=VARIANTS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp(request.param)
    config = configuration(request.param)
    model = random_model(class_of(config), config)
    model.save_pretrained(folder)
    ids = random_ids(config, (SEQUENCES, LENGTH))
    return Case(model, folder, ids, program_logits(folder, ids.tolist(), folder, "--routing", "--gradients"))


@torch.no_grad()
def test_logits(case: Case) -> None:
    for n, expected in enumerate(case.model(case.ids).logits):
        assert_close(case.said[f"logits.{n}"], expected)


@torch.no_grad()
def test_routing(case: Case) -> None:
    outputs: list[tuple[Tensor, Tensor, Tensor]] = []
    gates = [layer.mlp.gate for layer in case.model.model.layers if hasattr(layer.mlp, "gate")]
    hooks = [gate.register_forward_hook(lambda _, args, out: outputs.append(out)) for gate in gates]
    case.model(case.ids)
    for hook in hooks:
        hook.remove()
    for layer, (gate, (logits, weights, ids)) in enumerate(zip(gates, outputs, strict=True), 1):
        keys = [f"{n}.{layer}" for n in range(SEQUENCES)]
        assert_close(torch.cat([case.said[f"router_logits.{key}"] for key in keys]), logits)
        got_ids = torch.cat([case.said[f"topk_ids.{key}"] for key in keys]).long()
        got_weights = torch.cat([case.said[f"topk_weights.{key}"] for key in keys])
        assert got_ids.shape == ids.shape and got_weights.dtype == torch.float32
        _, lead = selection(gate, logits)
        clear = lead > 1e-5
        assert clear.float().mean() > 0.9
        got = torch.zeros_like(logits).scatter(-1, got_ids, got_weights)
        expected = torch.zeros_like(logits).scatter(-1, ids, weights)
        assert torch.equal((got != 0)[clear], (expected != 0)[clear])
        torch.testing.assert_close(got[clear], expected[clear], rtol=2e-5, atol=2e-6)
    assert f"router_logits.0.{len(gates) + 1}" not in case.said


def test_loss_and_gradients(case: Case) -> None:
    case.model.zero_grad()
    out = case.model(case.ids, labels=case.ids)
    out.loss.backward()
    assert case.said["loss"].item() == pytest.approx(out.loss.item(), rel=1e-6)
    balance = 0.0
    if case.model.config.model_type != "deepseek_v3" and case.model.config.output_router_logits:
        balance = case.model.config.router_aux_loss_coef * out.aux_loss.item()
        assert case.said["balance_loss"].item() == pytest.approx(out.aux_loss.item(), rel=1e-6)
    assert case.said["lm_loss"].item() == pytest.approx(out.loss.item() - balance, rel=1e-6)
    expected: dict[str, Tensor] = {}
    for name, parameter in case.model.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        expected |= checkpoint_tensors(name, gradient, case.model.config.model_type)
    got = {key.removeprefix("grad."): t for key, t in case.said.items() if key.startswith("grad.")}
    expected = not_empty(expected)
    assert got.keys() == expected.keys()
    assert [n for n, g in expected.items() if not (got[n] - g).norm() <= 1e-4 * g.norm()] == []


def test_round_trip(case: Case, tmp_path: Path) -> None:
    """transformers -> program -> transformers gives the same tensors and model."""
    run_hero("export", case.folder, tmp_path / "out")
    before = not_empty(load_file(case.folder / "model.safetensors"))
    after = not_empty(load_file(tmp_path / "out" / "model.safetensors"))
    assert before.keys() == after.keys() and {t.dtype for t in after.values()} == {torch.float32}
    assert [name for name, tensor in before.items() if not torch.equal(tensor, after[name])] == []
    opened = load_strict(tmp_path / "out")
    with torch.no_grad():
        assert torch.equal(opened(case.ids).logits, case.model(case.ids).logits)


def test_sequences_of_several_lengths(tmp_path: Path) -> None:
    config = configuration("deepseek-hero")
    model = random_model(class_of(config), config)
    model.save_pretrained(tmp_path)
    ids = random_ids(config, (1, 60))[0]
    parts = [part for part in ids.split([1, 32, 27])]
    said = program_logits(tmp_path, [part.tolist() for part in parts], tmp_path)
    assert said.keys() == {"logits.0", "logits.1", "logits.2"}
    with torch.no_grad():
        for n, part in enumerate(parts):
            assert_close(said[f"logits.{n}"], model(part[None]).logits[0])


OLMOE = {"model.model_type": "olmoe", "model.norm_topk_prob": False}
MIXTRAL = {"model.model_type": "mixtral"}
TRAINED: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen3-window": {"router.kind": "hero", "router.window": 1},
    "qwen3-global": {
        "router.kind": "hero",
        "router.window": 2,
        "router.stages": 2,
        "router.history": "global",
    },
    "qwen3-unscaled": {"router.kind": "hero", "router.scale": False, "model.tie_word_embeddings": True},
    "qwen3-rmoe": {"router.kind": "rmoe", "router.state_size": 24},
    "olmoe": OLMOE,
    "olmoe-hero": OLMOE | {"router.kind": "hero", "router.stages": 2},
    "mixtral": MIXTRAL,
    "mixtral-hero": MIXTRAL | {"router.kind": "hero", "router.window": 2},
    "mixtral-rmoe": MIXTRAL | {"router.kind": "rmoe", "router.state_size": 8},
    "deepseek": DEEPSEEK,
    "deepseek-softmax": DEEPSEEK | {"model.scoring_func": "softmax"},
    "deepseek-stages": DEEPSEEK | {"router.kind": "hero", "router.stages": 2, "model.n_group": 2},
    "deepseek-rmoe": DEEPSEEK
    | {"router.kind": "rmoe", "router.state_size": 8, "router.stages": 2, "router.detach": False},
}
CLASSES = {name: plain.__name__ for name, plain in PLAIN.items()}
MORE = {
    "train.dtype": "fp32",
    "optim.lr": 1e-2,
    "model.initializer_range": 0.1,
    "model.num_hidden_layers": 5,
    "router.balance_loss": 1e-3,
}


@dataclass
class Exported:
    name: str
    run: Path
    folder: Path
    pieces: Path
    tokens: list[int]


@pytest.fixture(scope="module", params=TRAINED)
def exported(
    request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Exported:
    """A run of some steps with large weights and learning rate, and its model folder."""
    work = tmp_path_factory.mktemp(request.param)
    run_hero(*training(work / "run", data, MORE | TRAINED[request.param]))
    run_hero("export", work / "run", work / "folder")
    tokens = np.fromfile(f"{data}-valid.bin", "<u2", 48).tolist()
    return Exported(request.param, work / "run", work / "folder", data.with_name("pieces.model"), tokens)


@torch.no_grad()
def test_export_loads_in_transformers(exported: Exported, tmp_path: Path) -> None:
    config = read_config(exported.folder)
    kind = TRAINED[exported.name].get("router.kind")
    own = kind or ("hero" if exported.name == "deepseek-softmax" else None)
    family = CLASSES[exported.name.partition("-")[0]]
    assert config["architectures"] == [(own or "").capitalize() + family]
    assert ("auto_map" in config) == bool(own)
    assert [key for key in config if key.endswith("_router")] == ([f"{kind}_router"] if kind else [])
    modules = {f"modeling_{own}_{config['model_type']}.py", f"{own}_router.py"}
    assert {p.name for p in exported.folder.glob("*.py")} == (modules if own else set())
    model = load_strict(exported.folder)
    assert type(model).__name__ == config["architectures"][0] and model.dtype == torch.float32

    said = program_logits(exported.run, [exported.tokens], tmp_path, "--routing")
    again = program_logits(exported.folder, [exported.tokens], tmp_path, "--routing")
    assert said.keys() == again.keys() and all(torch.equal(t, again[key]) for key, t in said.items())
    ids = torch.tensor([exported.tokens])
    out = model(ids, output_router_logits=True)
    assert_close(said["logits.0"], out.logits[0])
    for layer, logits in enumerate(out.router_logits, 1):
        assert_close(said[f"router_logits.0.{layer}"], logits)


def test_generation_matches(exported: Exported) -> None:
    model = load_strict(exported.folder)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(exported.pieces))
    prompt = "def index_1(node):\n\treturn "
    ids = torch.tensor([pieces.encode(prompt)])
    options: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": pieces.eos_id()}
    whole = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)[0]
    new = [i for i in whole[ids.shape[1] :].tolist() if i < pieces.vocab_size() and i != pieces.eos_id()]
    assert len(new) > 4
    words = ["--prompt", prompt, "--temperature", 0, "--max-tokens", 24, "--tokenizer", exported.pieces]
    assert run_hero("generate", exported.folder, *words).stdout == prompt + pieces.decode(new) + "\n"


def test_bf16_in_shards(exported: Exported, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    run_hero("export", exported.run, folder, "--dtype", "bf16", "--max-shard-size", "100KB")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = {file.name: load_file(file) for file in folder.glob("*.safetensors")}
    assert {name: file for file, tensors in files.items() for name in tensors} == index["weight_map"]
    sizes = [sum(t.nbytes for t in tensors.values()) for tensors in files.values()]
    assert len(files) > 2 and max(sizes) <= 100_000 and index["metadata"]["total_size"] == sum(sizes)
    tensors = {name: t for part in files.values() for name, t in part.items()}
    exact = load_file(exported.folder / "model.safetensors")
    assert tensors.keys() == exact.keys()
    for name, tensor in tensors.items():
        kept = "e_score_correction_bias" in name  # transformers keeps it in fp32
        expected = exact[name] if kept else exact[name].bfloat16()
        assert tensor.dtype == expected.dtype and torch.equal(tensor, expected), name
    model = load_strict(folder)
    assert model.dtype == torch.bfloat16
    check_bf16(model, folder)


def test_checkpoint_is_a_transformers_folder(exported: Exported) -> None:
    """A baseline's checkpoint loads without export."""
    if exported.name in PLAIN:
        with torch.no_grad():
            ids = torch.tensor([exported.tokens])
            logits = [load_strict(f)(ids).logits for f in (checkpoint(exported.run, 6), exported.folder)]
        assert torch.equal(*logits)
