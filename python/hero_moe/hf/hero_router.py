"""HERO routers for transformers: the visible layers of a router and its logits (HERO-MoE, Z^(l), rho).
Without `hero_router` in the configuration, the routers are those of a baseline.

Shapes: T tokens, D hidden size, E experts, M visible layers. MoE layers count from 1, dense layers do not.
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


class RoutingHistory:
    """Probabilities [T, E] by MoE layer number, of one forward call.

    A layer recomputed by gradient checkpointing stores the same values again. Not a mapping: hooks that move
    arguments between devices would copy it and lose stored values.
    """

    def __init__(self) -> None:
        self.probs: dict[int, Tensor] = {}
        self.with_grad = torch.is_grad_enabled()


@dataclass(frozen=True)
class HeroRouterSettings:
    """The object `hero_router` of a model's config.json."""

    window: int | None = None
    scale: bool = True
    eps: float = 1e-6
    detach: bool = True
    history: str = "stage"
    stages: Sequence[int] = ()

    @classmethod
    def of(cls, config: Any, moe_layers: int) -> HeroRouterSettings | None:
        """The settings in a transformers configuration, None for a baseline.

        Raises ValueError, with the key, for unknown keys and invalid values.
        """
        given = getattr(config, "hero_router", None)
        if given is None:
            return None
        known = {field.name for field in fields(cls)}
        if not isinstance(given, dict) or not given.keys() <= known:
            raise ValueError(f"hero_router: found {given!r}, expected an object with keys of {sorted(known)}")
        settings = cls(**{"stages": [0] * moe_layers} | given)
        settings.check(moe_layers)
        return settings

    def check(self, moe_layers: int) -> None:
        """Raises ValueError, with the key, for an invalid value."""

        def expect(valid: bool, key: str, expected: str) -> None:
            if not valid:
                raise ValueError(f"hero_router.{key}: found {getattr(self, key)!r}, expected {expected}")

        def is_integer(value: Any) -> bool:
            return isinstance(value, int) and not isinstance(value, bool)

        window, stages = self.window, self.stages
        positive = is_integer(window) and window >= 1
        expect(window is None or positive, "window", "null or an integer of at least 1")
        expect(isinstance(self.scale, bool), "scale", "true or false")
        expect(isinstance(self.detach, bool), "detach", "true or false")
        expect(isinstance(self.eps, (int, float)) and self.eps >= 0, "eps", "a non-negative number")
        expect(self.history in ("stage", "global"), "history", '"stage" or "global"')
        listed = isinstance(stages, (list, tuple)) and all(map(is_integer, stages))
        wanted = f"an integer for each of the {moe_layers} MoE layers"
        expect(listed and len(stages) == moe_layers, "stages", wanted)

    def visible(self, layer: int) -> list[int]:
        """S(l): the preceding MoE layers visible to layer `layer`, oldest first."""
        stage = self.stages[layer - 1]
        seen = [j for j in range(1, layer) if self.history == "global" or self.stages[j - 1] == stage]
        return seen if self.window is None else seen[-self.window :]


class HistoryReader:
    """One layer's view of the history. `settings` is None for a baseline router."""

    def __init__(self, settings: HeroRouterSettings | None, layer: int) -> None:
        self.settings = settings
        self.layer = layer
        self.visible = settings.visible(layer) if settings else []

    def bound(self, hidden_size: int, experts: int) -> float:
        """b of the initial weights U(-b, b): 1 / sqrt(D + (l - 1) E)."""
        return 1 / math.sqrt(hidden_size + (self.layer - 1) * experts)

    def logits(self, x: Tensor, weight: Tensor, history: RoutingHistory) -> tuple[Tensor, Tensor]:
        """Z = x W_O^T + (rho H) W_R^T and softmax(Z), both [T, E] in fp32 (fp64 for an fp64 model).

        x [T, D]; weight [E, D + M*E]. Stores the probabilities in the history, rounded to the type of x.
        """
        wide = torch.promote_types(x.dtype, torch.float32)
        d = x.shape[-1]
        with maybe_autocast(x.device.type, enabled=False):
            weight, inputs = weight.to(wide), x.to(wide)
            logits = F.linear(inputs, weight[:, :d])
            if self.settings and self.visible:
                seen = torch.cat([history.probs[j].to(x.device, wide) for j in self.visible], -1)
                if self.settings.scale:
                    seen = self.rho(inputs, seen) * seen
                logits = logits + F.linear(seen, weight[:, d:])
            probs = logits.softmax(-1)
        if self.settings:
            if not self.settings.detach and history.with_grad and not torch.is_grad_enabled():
                raise ValueError("hero_router.detach: found false, expected true for reentrant checkpointing")
            rounded = probs.detach().to(x.dtype)
            # Not detached: rounded values with the gradient of the exact ones. Both differences are exact.
            history.probs[self.layer] = (
                rounded if self.settings.detach else probs + (rounded.to(wide) - probs.detach())
            )
        return logits, probs

    def rho(self, x: Tensor, seen: Tensor) -> Tensor:
        """RMS(x) / (RMS(H) + eps) * sqrt((l - 1) / M) [T, 1]; x [T, D], seen [T, M*E]."""
        if self.settings.detach:
            x = x.detach()
        ratio = rms(x) / (rms(seen) + self.settings.eps)
        return ratio * math.sqrt((self.layer - 1) / len(self.visible))


def rms(rows: Tensor) -> Tensor:
    """Root mean square over the last dimension, kept with size 1."""
    return rows.square().mean(-1, keepdim=True).sqrt()


class HeroRouter:
    """Mixin of a model's router class. transformers' own, the other base, has `hidden_dim` and
    `num_experts`."""

    def add_weights(self, config: Any, moe_layers: int, layer: int) -> None:
        """Adds `weight` [E, D + M*E] of MoE layer `layer` of `moe_layers`."""
        self.settings = HeroRouterSettings.of(config, moe_layers)
        self.reader = HistoryReader(self.settings, layer)
        width = self.hidden_dim + len(self.reader.visible) * self.num_experts
        self.weight = nn.Parameter(torch.zeros(self.num_experts, width))

    def init_weights(self) -> None:
        bound = self.reader.bound(self.hidden_dim, self.num_experts)
        init.uniform_(self.weight, -bound, bound)

    def router_logits(self, x: Tensor, history: RoutingHistory) -> tuple[Tensor, Tensor]:
        return self.reader.logits(x, self.weight, history)
