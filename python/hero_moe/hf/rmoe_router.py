"""Layerwise recurrent routers for transformers (arXiv 2408.06793, Eq. 4 to 6): a GRU shared by the MoE layers
of a router stage carries a state per token, from which each layer computes its logits.

Shapes: T tokens, D hidden size, E experts, P state size. MoE layers count from 1, dense layers do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.utils.generic import maybe_autocast


@dataclass(frozen=True)
class RmoeRouterSettings:
    """The object `rmoe_router` of a model's config.json."""

    state_size: int | None = None  # required
    detach: bool = True
    stages: Sequence[int] = ()

    @classmethod
    def of(cls, config: Any, moe_layers: int) -> RmoeRouterSettings:
        """The settings in a transformers configuration. Raises ValueError, with the key, for unknown keys and
        invalid values."""
        given = getattr(config, "rmoe_router", None)
        known = {field.name for field in fields(cls)}
        if not isinstance(given, dict) or not given.keys() <= known:
            raise ValueError(f"rmoe_router: found {given!r}, expected an object with keys of {sorted(known)}")
        settings = cls(**{"stages": [0] * moe_layers} | given)
        settings.check(moe_layers)
        return settings

    def check(self, moe_layers: int) -> None:
        """Raises ValueError, with the key, for an invalid value."""

        def expect(valid: bool, key: str, expected: str) -> None:
            if not valid:
                raise ValueError(f"rmoe_router.{key}: found {getattr(self, key)!r}, expected {expected}")

        def is_integer(value: Any) -> bool:
            return isinstance(value, int) and not isinstance(value, bool)

        size, stages = self.state_size, self.stages
        expect(is_integer(size) and size >= 1, "state_size", "an integer of at least 1")
        expect(isinstance(self.detach, bool), "detach", "true or false")
        listed = isinstance(stages, (list, tuple)) and all(map(is_integer, stages))
        ascending = listed and list(stages) == sorted(stages)
        wanted = f"an integer for each of the {moe_layers} MoE layers, in ascending order"
        expect(ascending and len(stages) == moe_layers, "stages", wanted)

    def starts_stage(self, layer: int) -> bool:
        """Whether `layer` is the first MoE layer of its router stage."""
        return layer == 1 or self.stages[layer - 2] != self.stages[layer - 1]


class RoutingHistory:
    """Router states [T, P] by MoE layer number and GRUs by router stage, of one forward call.

    A layer recomputed by gradient checkpointing stores the same state again. Not a mapping: hooks that move
    arguments between devices would copy it and lose stored values.
    """

    def __init__(self) -> None:
        self.states: dict[int, Tensor] = {}
        self.grus: dict[int, StageGRU] = {}
        self.with_grad = torch.is_grad_enabled()


class StageGRU(nn.GRUCell):
    """The GRU of a router stage, a submodule of the stage's first router. The other routers call it too."""

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        """h' [T, P] in the type of x [T, P]."""
        weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        inputs = (t.to(self.weight_ih.device) for t in (x, state))  # device maps may separate layers
        return torch.gru_cell(*inputs, *(w.to(x.dtype) for w in weights)).to(x.device)


class Projection(nn.Module):
    """x W^T in the type of x. Not an nn.Linear, which quantization would replace."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


class RmoeRouter:
    """Mixin of a model's router class. transformers' own, the other base, has `hidden_dim` and
    `num_experts`."""

    def add_weights(self, config: Any, moe_layers: int, layer: int) -> None:
        """Adds `weight` [E, P], `projection` [P, D] and, at the start of a router stage, `gru` to MoE layer
        `layer` of `moe_layers`."""
        self.settings = RmoeRouterSettings.of(config, moe_layers)
        self.layer = layer
        size = self.settings.state_size
        self.weight = nn.Parameter(torch.zeros(self.num_experts, size))
        self.projection = Projection(self.hidden_dim, size)
        if self.settings.starts_stage(layer):
            self.gru = StageGRU(size, size)

    def init_weights(self) -> None:
        for name, weight in self.named_parameters():
            inputs = self.hidden_dim if name == "projection.weight" else self.settings.state_size
            init.uniform_(weight, -1 / math.sqrt(inputs), 1 / math.sqrt(inputs))

    def router_logits(self, x: Tensor, history: RoutingHistory) -> tuple[Tensor, Tensor]:
        """Z = h W^T with h = GRU(x P^T, state of the preceding layer), and softmax(Z), both [T, E] in fp32
        (fp64 for an fp64 model).

        x [T, D]. Stores h in the history, rounded to the type of x.
        """
        wide = torch.promote_types(x.dtype, torch.float32)
        with maybe_autocast(x.device.type, enabled=False):
            state = self.next_state(self.projection(x.to(wide)), history)
            logits = F.linear(state, self.weight.to(wide))
            probs = logits.softmax(-1)
        if not self.settings.detach and history.with_grad and not torch.is_grad_enabled():
            raise ValueError("rmoe_router.detach: found false, expected true for reentrant checkpointing")
        rounded = state.detach().to(x.dtype)
        # Not detached: rounded values with the gradient of the exact ones. Both differences are exact.
        history.states[self.layer] = (
            rounded if self.settings.detach else state + (rounded.to(wide) - state.detach())
        )
        return logits, probs

    def next_state(self, x: Tensor, history: RoutingHistory) -> Tensor:
        """h [T, P] from the projected hidden states x [T, P]."""
        stage = self.settings.stages[self.layer - 1]
        if self.settings.starts_stage(self.layer):
            history.grus[stage] = self.gru
            previous = torch.zeros_like(x)
        else:
            previous = history.states[self.layer - 1].to(x.device, x.dtype)
        return history.grus[stage](x, previous)
