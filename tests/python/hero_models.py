"""Random HERO models in transformers, and what their routers compute."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hero_moe.hf.modeling_hero_deepseek_v3 import HeroDeepseekV3ForCausalLM
from hero_moe.hf.modeling_hero_qwen3_moe import HeroQwen3MoeForCausalLM
from hf_models import configuration, random_model

LAYERS, D, E = 5, 32, 8
FAMILIES = {"qwen3": HeroQwen3MoeForCausalLM, "deepseek": HeroDeepseekV3ForCausalLM}
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


def in_fp64(model: PreTrainedModel) -> PreTrainedModel:
    """Converts a model to fp64, which grouped GEMM does not support."""
    model.set_experts_implementation("eager")
    return model.double()


def gates(model: PreTrainedModel) -> list[torch.nn.Module]:
    return [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]


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
