"""DeepSeek-V3 with the routers of hero_router.py: transformers' model with a different router. Scores are
sigmoid or, unlike in transformers' own class, softmax (`"scoring_func": "softmax"`).

The routing history belongs to one forward call: the model creates it and passes it to the layers as an
argument.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, DeepseekV3Model
from transformers import initialization as init
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3DecoderLayer,
    DeepseekV3MoE,
    DeepseekV3TopkRouter,
)

from .hero_router import HeroRouter, RoutingHistory


class HeroDeepseekV3TopkRouter(HeroRouter, DeepseekV3TopkRouter):
    """Router of MoE layer `layer` (from 1)."""

    def __init__(self, config: DeepseekV3Config, layer: int) -> None:
        super().__init__(config)
        self.scoring_func = getattr(config, "scoring_func", "sigmoid")
        if self.scoring_func not in ("sigmoid", "softmax"):
            raise ValueError(f'scoring_func: found {self.scoring_func!r}, expected "sigmoid" or "softmax"')
        layers = config.num_hidden_layers - config.first_k_dense_replace
        self.add_weights(config, layers, layer)

    def forward(self, hidden_states: Tensor, history: RoutingHistory) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [T, E], weights [T, K] and ids [T, K] of the chosen experts."""
        logits, probs = self.router_logits(hidden_states, history)
        scores = logits.sigmoid() if self.scoring_func == "sigmoid" else probs
        eligible = self.best_groups(scores + self.e_score_correction_bias)
        ids = eligible.topk(self.top_k, -1, sorted=False).indices
        weights = scores.gather(1, ids)
        if self.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return logits, weights * self.routed_scaling_factor, ids

    def best_groups(self, scores: Tensor) -> Tensor:
        """Scores [T, E], -inf outside the `topk_group` groups with the largest sums of two best scores."""
        if self.num_group == 1:
            return scores
        grouped = scores.unflatten(-1, (self.num_group, -1))
        best = grouped.topk(min(2, grouped.shape[-1]), -1).values.sum(-1)
        kept = best.topk(self.topk_group, -1, sorted=False).indices
        outside = torch.ones_like(best, dtype=torch.bool).scatter(-1, kept, False)
        return grouped.masked_fill(outside.unsqueeze(-1), float("-inf")).flatten(-2)


class HeroDeepseekV3MoE(DeepseekV3MoE):
    def __init__(self, config: DeepseekV3Config, layer: int) -> None:
        super().__init__(config)
        self.gate = HeroDeepseekV3TopkRouter(config, layer)
        if config.n_shared_experts == 0:
            self.shared_experts = None

    def forward(self, hidden_states: Tensor, history: RoutingHistory) -> Tensor:
        rows = hidden_states.flatten(0, -2)
        _, weights, ids = self.gate(rows, history)
        chosen = self.experts(rows, ids, weights).view_as(hidden_states)
        return chosen + self.shared_experts(hidden_states) if self.shared_experts else chosen


class HeroDeepseekV3DecoderLayer(DeepseekV3DecoderLayer):
    def __init__(self, config: DeepseekV3Config, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        if layer_idx >= config.first_k_dense_replace:
            self.mlp = HeroDeepseekV3MoE(config, layer_idx - config.first_k_dense_replace + 1)

    def forward(self, hidden_states: Tensor, *, routing_history: RoutingHistory, **kwargs: Any) -> Tensor:
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        hidden_states = hidden_states + attended
        inner = self.post_attention_layernorm(hidden_states)
        sparse = isinstance(self.mlp, HeroDeepseekV3MoE)
        return hidden_states + (self.mlp(inner, routing_history) if sparse else self.mlp(inner))


class HeroDeepseekV3Model(DeepseekV3Model):
    _no_split_modules = ["HeroDeepseekV3DecoderLayer"]
    # transformers searches the source file of this class for the experts, but they are in its own file.
    _can_set_experts_implementation = DeepseekV3Model._can_set_experts_implementation

    def __init__(self, config: DeepseekV3Config) -> None:
        super().__init__(config)
        self.layers = None  # keeps its place in the module order
        self.layers = nn.ModuleList(
            HeroDeepseekV3DecoderLayer(config, i) for i in range(config.num_hidden_layers)
        )
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, HeroDeepseekV3TopkRouter) and module.settings:
            module.init_weights()
            init.zeros_(module.e_score_correction_bias)
        else:
            super()._init_weights(module)

    @wraps(DeepseekV3Model.forward)
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, routing_history=RoutingHistory(), **kwargs)


class HeroDeepseekV3ForCausalLM(DeepseekV3ForCausalLM):
    _no_split_modules = HeroDeepseekV3Model._no_split_modules
    _can_set_experts_implementation = DeepseekV3Model._can_set_experts_implementation

    def __init__(self, config: DeepseekV3Config) -> None:
        super().__init__(config)
        self.model = None  # keeps its place in the module order
        self.model = HeroDeepseekV3Model(config)
        self.post_init()


for model_class, auto_class in (
    (HeroDeepseekV3Model, "AutoModel"),
    (HeroDeepseekV3ForCausalLM, "AutoModelForCausalLM"),
):
    model_class.register_for_auto_class(auto_class)
    # Fuses the experts in loading and splits them in saving, as for transformers' own classes.
    conversion = get_checkpoint_conversion_mapping("deepseek_v3")
    register_checkpoint_conversion_mapping(model_class.__name__, conversion, overwrite=True)
