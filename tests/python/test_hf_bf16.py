"""Models in bf16, the program's and transformers', both against transformers in fp64."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from hf_models import VARIANTS, class_of, configuration, random_ids, random_model
from program import ran

UNIT = 2.0**-8  # bf16's unit roundoff: a number's rounding error is at most this part of it
SEQUENCES, LENGTH = 48, 24  # more rows a pass than the kernels for few rows take


@dataclass
class Pass:
    """What one implementation computed: logits [N, S, V], and of every MoE layer the chosen experts [N*S, E]."""

    logits: Tensor
    chosen: list[Tensor]


def one_hot(ids: Tensor, experts: int) -> Tensor:
    return torch.zeros(len(ids), experts, dtype=torch.bool).scatter(1, ids.long(), True)


@torch.no_grad()
def transformers_pass(model: PreTrainedModel, ids: Tensor) -> Pass:
    chosen: list[Tensor] = []
    gates = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]

    def keep(_gate: torch.nn.Module, _inputs: object, out: tuple[Tensor, Tensor, Tensor]) -> None:
        chosen.append(one_hot(out[2], out[0].shape[-1]))

    hooks = [gate.register_forward_hook(keep) for gate in gates]
    logits = model(ids).logits.double()
    for hook in hooks:
        hook.remove()
    return Pass(logits, chosen)


def program_pass(folder: Path, ids: Tensor, layers: int) -> Pass:
    (folder / "tokens.json").write_text(json.dumps(ids.tolist()))
    out = folder / "out.safetensors"
    ran("logits", folder, "--tokens", folder / "tokens.json", "--out", out, "--dtype", "bf16", "--routing")
    said = load_file(out)
    experts = said["router_logits.0.1"].shape[-1]
    chosen = [
        torch.cat([one_hot(said[f"topk_ids.{n}.{l}"], experts) for n in range(len(ids))])
        for l in range(1, layers + 1)
    ]
    return Pass(torch.stack([said[f"logits.{n}"] for n in range(len(ids))]).double(), chosen)


def unaffected(exact: Pass, others: list[Pass]) -> Tensor:
    """Tokens [N, S] that, like all before them in their sequence, have the exact choices in every layer."""
    same = torch.ones(exact.logits.shape[:2], dtype=torch.bool)
    for other in others:
        for a, b in zip(exact.chosen, other.chosen, strict=True):
            same &= (a == b).all(1).view_as(same)
    return same.long().cumprod(1).bool()


def relative_error(got: Tensor, exact: Tensor) -> float:
    return ((got - exact).norm() / exact.norm()).item()


def expected_error(decoder_layers: int) -> float:
    """Of logits without a changed choice. A rounding errs by UNIT / sqrt(3) in the root mean square, at most, and
    roundings are independent. A layer has 13 one after the other: norm, projection, rotation, attention, output,
    sum; norm, router or first projection, activation, second projection, combination, sum; and 1 of its weights'
    products that runs beside them. The final norm and the head have 2."""
    return UNIT / math.sqrt(3) * math.sqrt(13 * decoder_layers + 2)


@pytest.mark.parametrize("name", VARIANTS)
def test_bf16_errs_no_more_than_transformers(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    deepseek = name.startswith("deepseek")
    config = configuration(name, **{"n_routed_experts" if deepseek else "num_experts": 16})
    model = random_model(class_of(config), config).bfloat16()
    model.save_pretrained(tmp_path)
    ids = random_ids(config, (SEQUENCES, LENGTH))
    theirs = transformers_pass(model, ids)
    ours = program_pass(tmp_path, ids, len(theirs.chosen))
    model.set_experts_implementation("eager")  # the default one knows no fp64
    exact = transformers_pass(model.double(), ids)
    errors = [relative_error(p.logits, exact.logits) for p in (ours, theirs)]
    clean = unaffected(exact, [ours, theirs])
    cleane = [relative_error(p.logits[clean], exact.logits[clean]) for p in (ours, theirs)]
    co = unaffected(exact, [ours])
    ct = unaffected(exact, [theirs])
    print(
        name,
        "all",
        errors,
        "ratio",
        errors[0] / errors[1],
        "clean",
        cleane,
        "bound",
        expected_error(config.num_hidden_layers),
        "share",
        clean.float().mean().item(),
        co.float().mean().item(),
        ct.float().mean().item(),
    )
