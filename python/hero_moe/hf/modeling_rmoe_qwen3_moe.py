"""Qwen3-MoE with the routers of rmoe_router.py: transformers' model with a different router.

The routing history belongs to one forward call: the model creates it and passes it to the layers as an
argument.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch import Tensor, nn
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM, Qwen3MoeModel
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.models.qwen3_moe.modeling_qwen3_moe import (
    Qwen3MoeDecoderLayer,
    Qwen3MoeSparseMoeBlock,
    Qwen3MoeTopKRouter,
)

from .rmoe_router import RmoeRouter, RoutingHistory


def moe_layers(config: Qwen3MoeConfig) -> list[int]:
    """Indices, from 0, of the layers that have experts."""
    return [
        i
        for i in range(config.num_hidden_layers)
        if i not in config.mlp_only_layers and (i + 1) % config.decoder_sparse_step == 0
    ]


class RmoeQwen3MoeTopKRouter(RmoeRouter, Qwen3MoeTopKRouter):
    """Router of MoE layer `layer` (from 1)."""

    def __init__(self, config: Qwen3MoeConfig, layer: int) -> None:
        super().__init__(config)
        self.add_weights(config, len(moe_layers(config)), layer)

    def forward(self, hidden_states: Tensor, history: RoutingHistory) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [T, E], weights [T, K] and ids [T, K] of the chosen experts."""
        logits, probs = self.router_logits(hidden_states, history)
        weights, ids = probs.topk(self.top_k, -1)
        if self.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights, ids


class RmoeQwen3MoeSparseMoeBlock(Qwen3MoeSparseMoeBlock):
    def __init__(self, config: Qwen3MoeConfig, layer: int) -> None:
        super().__init__(config)
        self.gate = RmoeQwen3MoeTopKRouter(config, layer)

    def forward(self, hidden_states: Tensor, history: RoutingHistory) -> Tensor:
        rows = hidden_states.flatten(0, -2)
        _, weights, ids = self.gate(rows, history)
        return self.experts(rows, ids, weights).view_as(hidden_states)


class RmoeQwen3MoeDecoderLayer(Qwen3MoeDecoderLayer):
    def __init__(self, config: Qwen3MoeConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        sparse = moe_layers(config)
        if layer_idx in sparse:
            self.mlp = RmoeQwen3MoeSparseMoeBlock(config, sparse.index(layer_idx) + 1)

    def forward(self, hidden_states: Tensor, *, routing_history: RoutingHistory, **kwargs: Any) -> Tensor:
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        hidden_states = hidden_states + attended
        inner = self.post_attention_layernorm(hidden_states)
        sparse = isinstance(self.mlp, RmoeQwen3MoeSparseMoeBlock)
        return hidden_states + (self.mlp(inner, routing_history) if sparse else self.mlp(inner))


class RmoeQwen3MoeModel(Qwen3MoeModel):
    _no_split_modules = ["RmoeQwen3MoeDecoderLayer"]
    # transformers searches the source file of this class for the experts, but they are in its own file.
    _can_set_experts_implementation = Qwen3MoeModel._can_set_experts_implementation

    def __init__(self, config: Qwen3MoeConfig) -> None:
        super().__init__(config)
        self.layers = None  # keeps its place in the module order
        self.layers = nn.ModuleList(
            RmoeQwen3MoeDecoderLayer(config, i) for i in range(config.num_hidden_layers)
        )
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, RmoeQwen3MoeTopKRouter) and module.settings:
            module.init_weights()
        else:
            super()._init_weights(module)

    @wraps(Qwen3MoeModel.forward)
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, routing_history=RoutingHistory(), **kwargs)


class RmoeQwen3MoeForCausalLM(Qwen3MoeForCausalLM):
    _no_split_modules = RmoeQwen3MoeModel._no_split_modules
    _can_set_experts_implementation = Qwen3MoeModel._can_set_experts_implementation

    def __init__(self, config: Qwen3MoeConfig) -> None:
        super().__init__(config)
        self.model = None  # keeps its place in the module order
        self.model = RmoeQwen3MoeModel(config)
        self.post_init()


for model_class, auto_class in (
    (RmoeQwen3MoeModel, "AutoModel"),
    (RmoeQwen3MoeForCausalLM, "AutoModelForCausalLM"),
):
    model_class.register_for_auto_class(auto_class)
    # Fuses the experts in loading and splits them in saving, as for transformers' own classes.
    conversion = get_checkpoint_conversion_mapping("qwen3_moe")
    register_checkpoint_conversion_mapping(model_class.__name__, conversion, overwrite=True)
