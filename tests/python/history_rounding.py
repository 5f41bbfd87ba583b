"""Checks the rounding of the routing history of a bf16 model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# Relative error of a probability computed in fp32 from sums of some hundred products.
FP32_ERROR = 1e-5


def exact_logits(
    x: Tensor, weight: Tensor, seen: Sequence[Tensor], layer: int, eps: float = 1e-6, scale: bool = True
) -> Tensor:
    """Z of router `layer` in fp64, from its operands and its visible history."""
    x, weight = x.detach().double(), weight.detach().double()
    logits = x @ weight[:, : x.shape[1]].t()
    if not seen:
        return logits
    h = torch.cat([t.detach().double() for t in seen], 1)
    rms_x, rms_h = (t.square().mean(1, keepdim=True).sqrt() for t in (x, h))
    rho = rms_x / (rms_h + eps) * math.sqrt((layer - 1) / len(seen)) if scale else 1.0
    return logits + rho * (h @ weight[:, x.shape[1] :].t())


def assert_rounded_once(stored: Tensor, logits: Tensor, dtype: torch.dtype) -> None:
    """Asserts that `stored` is softmax(logits) rounded to `dtype` once. A value within fp32 error of a
    rounding boundary may be rounded either way."""
    assert torch.equal(stored.to(dtype).to(stored.dtype), stored)
    probs, got = logits.softmax(1), stored.detach().double()
    low, high = ((probs * (1 + off)).to(dtype).double() for off in (-FP32_ERROR, FP32_ERROR))
    assert ((got >= low) & (got <= high)).all()
