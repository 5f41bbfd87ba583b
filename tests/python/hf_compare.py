"""Compares the program with transformers on the same folder and tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from program import run_hero

LOGITS = 2e-5  # maximum difference of fp32 logits relative to the largest logit


def program_logits(model: Path, tokens: list[list[int]], work: Path, *words: Any) -> dict[str, Tensor]:
    (work / "tokens.json").write_text(json.dumps(tokens))
    out = work / "out.safetensors"
    run_hero("logits", model, "--tokens", work / "tokens.json", "--out", out, *words)
    tensors = load_file(out)
    out.unlink()  # the tensors are a view of this file: the next call must not write into it
    return tensors


def random_logits(model: Path, vocabulary: int, length: int, seed: int, work: Path) -> dict[str, Tensor]:
    """Logits and routing of two random sequences."""
    rng = random.Random(seed)
    tokens = [[rng.randrange(vocabulary) for _ in range(length)] for _ in range(2)]
    return program_logits(model, tokens, work, "--routing")


def assert_close(got: Tensor, expected: Tensor, part: float = LOGITS) -> None:
    """Asserts that the maximum difference is at most `part` of the largest value."""
    assert got.dtype == torch.float32 and got.shape == expected.shape
    assert (got - expected).abs().max() <= part * expected.abs().max()


def selection(gate: torch.nn.Module, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Selection scores [T, E], -inf outside the chosen groups, and the smallest score margin [T] of a
    choice."""

    def lead(scores: Tensor, k: int) -> Tensor:
        best = scores.topk(min(k + 1, scores.shape[-1]), -1).values
        return best[:, k - 1] - best[:, k] if best.shape[-1] > k else torch.full_like(best[:, 0], torch.inf)

    if getattr(gate, "scoring_func", "sigmoid" if hasattr(gate, "num_group") else "softmax") == "softmax":
        scores = logits.softmax(-1)
    else:
        scores = logits.sigmoid()
    if not hasattr(gate, "num_group"):
        return scores, lead(scores, gate.top_k)
    scores = (scores + gate.e_score_correction_bias).unflatten(-1, (gate.num_group, -1))
    groups = scores.topk(2, -1).values.sum(-1)
    least = groups.topk(gate.topk_group, -1).values[:, -1:]
    scores = scores.masked_fill((groups < least).unsqueeze(-1), -torch.inf).flatten(-2)
    return scores, torch.minimum(lead(scores, gate.top_k), lead(groups, gate.topk_group))


def checkpoint_tensors(name: str, tensor: Tensor, model_type: str) -> dict[str, Tensor]:
    """A parameter of transformers, or its gradient, split into the tensors of a model folder."""
    gate, up, down = ("gate_proj", "up_proj", "down_proj")
    if model_type == "mixtral":
        name, (gate, up, down) = name.replace(".mlp.", ".block_sparse_moe."), ("w1", "w3", "w2")
    experts, _, kind = name.rpartition(".")
    if not experts.endswith(".experts"):
        return {name: tensor}
    if kind == "down_proj":
        return {f"{experts}.{e}.{down}.weight": part for e, part in enumerate(tensor)}
    halves = zip((gate, up), tensor.chunk(2, 1), strict=True)
    return {f"{experts}.{e}.{half}.weight": part for half, all_ in halves for e, part in enumerate(all_)}


def not_empty(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Removes the empty shared-expert tensors that transformers writes for models without shared experts."""
    return {name: tensor for name, tensor in tensors.items() if tensor.numel()}


def module_prefixes(config: PreTrainedConfig) -> tuple[str, ...]:
    """Of the names of weights of multi-token prediction modules, which transformers does not load."""
    modules = getattr(config, "num_nextn_predict_layers", 0)
    return tuple(f"model.layers.{config.num_hidden_layers + k}." for k in range(modules))


def load_strict(folder: Path, **options: Any) -> PreTrainedModel:
    """Loads the folder in transformers; fails for missing, unknown or mismatched tensors."""
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True, **options
    )
    prefixes = module_prefixes(model.config)
    report["unexpected_keys"] = [k for k in report["unexpected_keys"] if not k.startswith(prefixes)]
    without = {"n_shared_experts": 0}.items() <= model.config.to_dict().items()
    found = {kind: keys for kind, keys in report.items() if keys and not (without and kind == "missing_keys")}
    assert not found, f"{folder}: {found}"
    return model.eval()
