"""OLMoE with the routers of hero_router.py: transformers' model with a different router.

The routing history belongs to one forward call: the model creates it and passes it to the layers as an
argument.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch import Tensor, nn
from transformers import OlmoeConfig, OlmoeForCausalLM, OlmoeModel
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.models.olmoe.modeling_olmoe import (
    OlmoeDecoderLayer,
    OlmoeSparseMoeBlock,
    OlmoeTopKRouter,
)

from .hero_router import HeroRouter, RoutingHistory


class HeroOlmoeTopKRouter(HeroRouter, OlmoeTopKRouter):
    """Router of MoE layer `layer` (from 1)."""

    def __init__(self, config: OlmoeConfig, layer: int) -> None:
        super().__init__(config)
        self.add_weights(config, config.num_hidden_layers, layer)

    def forward(self, hidden_states: Tensor, history: RoutingHistory) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [T, E], weights [T, K] and ids [T, K] of the chosen experts."""
        logits, probs = self.router_logits(hidden_states, history)
        weights, ids = probs.topk(self.top_k, -1)
        if self.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights, ids


class HeroOlmoeSparseMoeBlock(OlmoeSparseMoeBlock):
    def __init__(self, config: OlmoeConfig, layer: int) -> None:
        super().__init__(config)
        self.gate = HeroOlmoeTopKRouter(config, layer)

    def forward(self, hidden_states: Tensor, history: RoutingHistory) -> Tensor:
        rows = hidden_states.flatten(0, -2)
        _, weights, ids = self.gate(rows, history)
        return self.experts(rows, ids, weights).view_as(hidden_states)


class HeroOlmoeDecoderLayer(OlmoeDecoderLayer):
    def __init__(self, config: OlmoeConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.mlp = HeroOlmoeSparseMoeBlock(config, layer_idx + 1)

    def forward(self, hidden_states: Tensor, *, routing_history: RoutingHistory, **kwargs: Any) -> Tensor:
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        hidden_states = hidden_states + attended
        inner = self.post_attention_layernorm(hidden_states)
        return hidden_states + self.mlp(inner, routing_history)


class HeroOlmoeModel(OlmoeModel):
    _no_split_modules = ["HeroOlmoeDecoderLayer"]
    # transformers searches the source file of this class for the experts, but they are in its own file.
    _can_set_experts_implementation = OlmoeModel._can_set_experts_implementation

    def __init__(self, config: OlmoeConfig) -> None:
        super().__init__(config)
        self.layers = None  # keeps its place in the module order
        self.layers = nn.ModuleList(HeroOlmoeDecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, HeroOlmoeTopKRouter) and module.settings:
            module.init_weights()
        else:
            super()._init_weights(module)

    @wraps(OlmoeModel.forward)
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, routing_history=RoutingHistory(), **kwargs)


class HeroOlmoeForCausalLM(OlmoeForCausalLM):
    _no_split_modules = HeroOlmoeModel._no_split_modules
    _can_set_experts_implementation = OlmoeModel._can_set_experts_implementation

    def __init__(self, config: OlmoeConfig) -> None:
        super().__init__(config)
        self.model = None  # keeps its place in the module order
        self.model = HeroOlmoeModel(config)
        self.post_init()


for model_class, auto_class in (
    (HeroOlmoeModel, "AutoModel"),
    (HeroOlmoeForCausalLM, "AutoModelForCausalLM"),
):
    model_class.register_for_auto_class(auto_class)
    # Fuses the experts in loading and splits them in saving, as for transformers' own classes.
    conversion = get_checkpoint_conversion_mapping("olmoe")
    register_checkpoint_conversion_mapping(model_class.__name__, conversion, overwrite=True)
