"""bf16 errors of the program and of transformers, both relative to transformers in fp64.

If two experts are nearly tied, bf16 may choose a different one than fp64, and the token's error is as large
as the difference of the experts. Therefore errors are bounded only for tokens with exact choices, and total
errors are compared with those of transformers, which has the same ties, in the mean over several models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_compare import program_logits
from hf_models import random_ids

UNIT = 2.0**-8  # bf16 unit roundoff: the maximum relative rounding error
RATIO = 1.5  # maximum ratio of the program's error to that of transformers, tokens with exact choices
MEAN_RATIO = 1.25  # the same for the mean errors of several models, all tokens
SEQUENCES, LENGTH = 48, 24  # more rows per pass than the skinny GEMM kernels take


@dataclass
class Pass:
    """Results of one implementation: logits [N, S, V] and the chosen experts [N*S, E] of every MoE layer."""

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
    said = program_logits(folder, ids.tolist(), folder, "--dtype", "bf16", "--routing")
    numbers, experts = range(len(ids)), said["router_logits.0.1"].shape[-1]
    chosen = [
        torch.cat([one_hot(said[f"topk_ids.{n}.{l}"], experts) for n in numbers])
        for l in range(1, layers + 1)
    ]
    return Pass(torch.stack([said[f"logits.{n}"] for n in numbers]).double(), chosen)


def unaffected(exact: Pass, others: list[Pass]) -> Tensor:
    """Tokens [N, S] with exact choices in every layer, for themselves and all earlier tokens of the
    sequence."""
    same = torch.ones(exact.logits.shape[:2], dtype=torch.bool)
    for other in others:
        for a, b in zip(exact.chosen, other.chosen, strict=True):
            same &= (a == b).all(1).view_as(same)
    return same.long().cumprod(1).bool()


def bound(decoder_layers: int) -> float:
    """Bound of the relative logit error of tokens with exact experts. Independent rounding errors, each at
    most UNIT, add up in the root mean square. One layer rounds 13 times in sequence: norm, projection,
    position, attention weights, their sum, projection, residual sum; norm, first projection, activation,
    second projection, sum over experts, residual sum. The head rounds in its norm and its GEMM."""
    return UNIT * math.sqrt(13 * decoder_layers + 2)


class Errors(NamedTuple):
    """Relative errors of all logits."""

    ours: float
    theirs: float


def check_bf16(model: PreTrainedModel, folder: Path) -> Errors:
    """Checks the tokens with exact choices of `model`, in bf16 (converted to fp64 here); `folder` holds the same
    weights. Returns the errors of all tokens."""
    ids = random_ids(model.config, (SEQUENCES, LENGTH))
    theirs = transformers_pass(model, ids)
    ours = program_pass(folder, ids, len(theirs.chosen))
    model.set_experts_implementation("eager")  # the default does not support fp64
    exact = transformers_pass(model.double(), ids)
    clean = unaffected(exact, [ours, theirs])
    assert clean.float().mean() > 0.2

    def errors(where: Tensor) -> Errors:
        size = exact.logits[where].norm()
        return Errors(*[((p.logits - exact.logits)[where].norm() / size).item() for p in (ours, theirs)])

    found = errors(clean)
    assert found.ours <= bound(model.config.num_hidden_layers)
    assert found.ours <= RATIO * found.theirs
    return errors(torch.ones_like(clean))


def check_mean(errors: list[Errors]) -> None:
    """Checks the mean errors of all tokens over several models. In a single one, the ratio depends on the few tokens
    for which only one of the implementations chooses other experts."""
    assert len(errors) >= 6
    assert sum(e.ours for e in errors) <= MEAN_RATIO * sum(e.theirs for e in errors), errors
