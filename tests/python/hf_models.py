"""Small random transformers models that cover the configuration options of its checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from hero_moe.hf.modeling_hero_deepseek_v3 import HeroDeepseekV3ForCausalLM
from hero_moe.hf.modeling_hero_mixtral import HeroMixtralForCausalLM
from hero_moe.hf.modeling_hero_olmoe import HeroOlmoeForCausalLM
from hero_moe.hf.modeling_hero_qwen3_moe import HeroQwen3MoeForCausalLM
from hero_moe.hf.modeling_rmoe_deepseek_v3 import RmoeDeepseekV3ForCausalLM
from hero_moe.hf.modeling_rmoe_mixtral import RmoeMixtralForCausalLM
from hero_moe.hf.modeling_rmoe_olmoe import RmoeOlmoeForCausalLM
from hero_moe.hf.modeling_rmoe_qwen3_moe import RmoeQwen3MoeForCausalLM

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "moe_intermediate_size": 16,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
}
QWEN3 = COMMON | {"num_key_value_heads": 2, "head_dim": 8, "num_experts": 8}
DEEPSEEK = COMMON | {
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.5,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "num_nextn_predict_layers": 0,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}

# Overrides of the family's configuration.
QWEN3_VARIANTS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen3-head-dim": {"head_dim": 16, "num_key_value_heads": 1},
    "qwen3-sparse-step": {"num_hidden_layers": 4, "decoder_sparse_step": 2},
    "qwen3-dense-layers": {"num_hidden_layers": 4, "mlp_only_layers": [0, 2], "num_key_value_heads": 4},
    "qwen3-raw-weights": {"norm_topk_prob": False, "num_experts_per_tok": 3},
    "qwen3-tied": {"tie_word_embeddings": True},
    "qwen3-yarn": {"rope_parameters": YARN},
    "qwen3-balance": {"output_router_logits": True, "router_aux_loss_coef": 0.05},
    "qwen3-hero": {"num_hidden_layers": 4, "hero_router": {"eps": 1e-3}},
    "qwen3-hero-global": {
        "num_hidden_layers": 4,
        "hero_router": {"window": 2, "history": "global", "stages": [0, 0, 1, 1]},
    },
    "qwen3-hero-balance": {
        "output_router_logits": True,
        "router_aux_loss_coef": 0.05,
        "hero_router": {"detach": False, "scale": False},
    },
    "qwen3-rmoe": {
        "num_hidden_layers": 5,
        "mlp_only_layers": [1],
        "rmoe_router": {"state_size": 6, "stages": [0, 0, 1, 1]},
    },
}
DEEPSEEK_VARIANTS: dict[str, dict[str, Any]] = {
    "deepseek": {},
    "deepseek-no-rank": {"q_lora_rank": None, "n_shared_experts": 2, "first_k_dense_replace": 0},
    "deepseek-groups": {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 3},
    "deepseek-raw-weights": {"norm_topk_prob": False, "n_shared_experts": 0, "routed_scaling_factor": 2.5},
    "deepseek-dense-layers": {"first_k_dense_replace": 2},
    "deepseek-halves": {"rope_interleave": False},
    "deepseek-yarn": {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.0}},
    "deepseek-yarn-plain": {"rope_parameters": YARN, "tie_word_embeddings": True},
    "deepseek-values": {"v_head_dim": 20, "qk_rope_head_dim": 8},
    "deepseek-softmax": {"scoring_func": "softmax", "n_group": 2},
    "deepseek-hero": {"num_hidden_layers": 5, "hero_router": {"stages": [0, 0, 1, 1], "detach": False}},
    "deepseek-hero-softmax": {
        "num_hidden_layers": 4,
        "scoring_func": "softmax",
        "hero_router": {"window": 1},
    },
    "deepseek-rmoe": {"num_hidden_layers": 4, "rmoe_router": {"state_size": 5, "detach": False}},
    "deepseek-rmoe-softmax": {"scoring_func": "softmax", "rmoe_router": {"state_size": 16}},
}
WITHOUT_DENSE = {k: v for k, v in COMMON.items() if k not in ("moe_intermediate_size", "norm_topk_prob")}
OLMOE = WITHOUT_DENSE | {"num_experts": 8, "num_key_value_heads": 2, "pad_token_id": None}
OLMOE_VARIANTS: dict[str, dict[str, Any]] = {
    "olmoe": {},
    "olmoe-norm": {"norm_topk_prob": True, "num_key_value_heads": 4, "tie_word_embeddings": True},
    "olmoe-balance": {"output_router_logits": True, "router_aux_loss_coef": 0.05, "rope_parameters": YARN},
    "olmoe-hero": {"num_hidden_layers": 4, "hero_router": {"window": 2, "stages": [0, 0, 1, 1]}},
    "olmoe-rmoe": {"num_hidden_layers": 4, "rmoe_router": {"state_size": 6}},
}
MIXTRAL = WITHOUT_DENSE | {"num_local_experts": 8, "num_key_value_heads": 2}
MIXTRAL_VARIANTS: dict[str, dict[str, Any]] = {
    "mixtral": {},
    "mixtral-head-dim": {"head_dim": 16, "num_key_value_heads": 1, "tie_word_embeddings": True},
    "mixtral-balance": {
        "output_router_logits": True,
        "router_aux_loss_coef": 0.05,
        "rope_parameters": YARN,
        "head_dim": 8,  # transformers' YaRN does not derive it
    },
    "mixtral-hero": {"num_hidden_layers": 4, "hero_router": {"detach": False, "stages": [0, 0, 1, 1]}},
    "mixtral-rmoe": {"num_hidden_layers": 4, "rmoe_router": {"state_size": 6}},
}
VARIANTS = QWEN3_VARIANTS | DEEPSEEK_VARIANTS | OLMOE_VARIANTS | MIXTRAL_VARIANTS


def configuration(name: str, **more: Any) -> PreTrainedConfig:
    """The configuration `name` with the overrides `more`."""
    if name in QWEN3_VARIANTS:
        return Qwen3MoeConfig(**QWEN3 | QWEN3_VARIANTS[name] | more)
    if name in OLMOE_VARIANTS:
        return OlmoeConfig(**OLMOE | OLMOE_VARIANTS[name] | more)
    if name in MIXTRAL_VARIANTS:
        return MixtralConfig(**MIXTRAL | MIXTRAL_VARIANTS[name] | more)
    return DeepseekV3Config(**DEEPSEEK | DEEPSEEK_VARIANTS[name] | more)


PLAIN = {
    "qwen3": Qwen3MoeForCausalLM,
    "deepseek": DeepseekV3ForCausalLM,
    "olmoe": OlmoeForCausalLM,
    "mixtral": MixtralForCausalLM,
}
HERO = {
    "qwen3": HeroQwen3MoeForCausalLM,
    "deepseek": HeroDeepseekV3ForCausalLM,
    "olmoe": HeroOlmoeForCausalLM,
    "mixtral": HeroMixtralForCausalLM,
}
RMOE = {
    "qwen3": RmoeQwen3MoeForCausalLM,
    "deepseek": RmoeDeepseekV3ForCausalLM,
    "olmoe": RmoeOlmoeForCausalLM,
    "mixtral": RmoeMixtralForCausalLM,
}


def class_of(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """transformers' own class, or ours if its own does not support the configuration."""
    family = {"qwen3_moe": "qwen3", "deepseek_v3": "deepseek"}.get(config.model_type, config.model_type)
    if getattr(config, "rmoe_router", None):
        return RMOE[family]
    if getattr(config, "hero_router", None) or getattr(config, "scoring_func", "sigmoid") == "softmax":
        return HERO[family]
    return PLAIN[family]


def random_model(
    model_class: type[PreTrainedModel], config: PreTrainedConfig, seed: int = 0
) -> PreTrainedModel:
    """An fp32 model with perturbed norms and biases."""
    torch.manual_seed(seed)
    model = model_class(config).eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "norm" in name:
                tensor.add_(0.3 * torch.randn_like(tensor))
            elif "bias" in name:
                tensor.add_(0.1 * torch.randn_like(tensor))
    return model


def in_fp64(model: PreTrainedModel) -> PreTrainedModel:
    """Converts a model to fp64, which grouped GEMM does not support."""
    model.set_experts_implementation("eager")
    return model.double()


def gates(model: PreTrainedModel) -> list[torch.nn.Module]:
    return [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]


def gradients(model: PreTrainedModel, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Gradients of the language-model loss in training mode; every parameter must have one."""
    model.train().zero_grad()
    model(ids, labels=ids, use_cache=False).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def random_ids(config: PreTrainedConfig, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randint(config.vocab_size, shape, generator=torch.Generator().manual_seed(1))


def read_config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())
