"""Random HERO models in transformers, and what their routers compute."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_models import HERO as FAMILIES
from hf_models import configuration, gates, random_model

LAYERS, D, E = 5, 32, 8
STAGES = [0, 0, 0, 1, 1]
HERO: dict[str, dict[str, Any]] = {
    "all": {},
    "last": {"window": 1},
    "two": {"window": 2, "eps": 1e-3},
    "stages": {"stages": STAGES, "window": None},
    "global": {"stages": STAGES, "history": "global"},
    "global-two": {"stages": STAGES, "history": "global", "window": 2},
    "unscaled": {"stages": STAGES, "scale": False},
    "deep": {"eps": 0.05, "detach": False},
}


def hero_model(family: str, hero: dict[str, Any] | None, **more: Any) -> PreTrainedModel:
    """A random model with LAYERS MoE layers; the DeepSeek model has a dense layer before them."""
    layers = LAYERS + (family == "deepseek")
    more |= {} if hero is None else {"hero_router": hero}
    return random_model(FAMILIES[family], configuration(family, num_hidden_layers=layers, **more))


def routed(model: PreTrainedModel, ids: Tensor) -> tuple[list[Tensor], list[tuple[Tensor, Tensor, Tensor]]]:
    """Each router's input [T, D], and its logits, weights and ids, in one forward call."""
    inputs, outputs = [], []

    def keep(_: Any, args: tuple[Any, ...], out: tuple[Tensor, Tensor, Tensor]) -> None:
        inputs.append(args[0].detach())
        outputs.append(tuple(t.detach() for t in out))

    hooks = [gate.register_forward_hook(keep) for gate in gates(model)]
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    return inputs, outputs
