"""Adds routing history to the MoE models of transformers: `patch`.

A forward pass creates one RoutingHistory and passes it to every layer as a keyword argument. Gradient
checkpointing saves a layer's arguments, so a recomputed layer gets the history of its own pass, in any
thread.
"""

from __future__ import annotations

import math
import numbers
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.olmoe.modeling_olmoe import OlmoeTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from hero_moe.policy import sparse_route
from hero_moe.router import (
    RoutingHistory,
    accumulation_type,
    check_eps,
    check_visible,
    history_logits_through,
    init_bound,
    operand_type,
    round_through,
    wide_product,
)

_ARGUMENT = "routing_history"
_pending = threading.local()  # .current: from a layer's attention to the router behind it


class _Pass:
    """One forward pass. Not a mapping, so that hooks that move arguments to a device do not copy it."""

    def __init__(self) -> None:
        self.history = RoutingHistory()
        self.with_gradient = torch.is_grad_enabled()


class _HistoryGate(nn.Module):
    """Mixin for a transformers router class: adds the history logits to the router's own logits.

    The hidden state logits are computed as in the original model, so a router with W_R = 0 is bit-identical.
    """

    hidden_dim: int
    weight: nn.Parameter

    def adopt(self, layer: int, visible: tuple[int, ...], init: str, options: dict[str, Any]) -> None:
        """Widens the weight from [E, D] to [E, D + M*E]."""
        self.layer, self.visible = layer, visible
        self.scale, self.eps, self.detach = options["scale"], options["eps"], options["detach"]
        self.depth_factor = math.sqrt((layer - 1) / len(visible)) if visible else 1.0
        old = self.weight
        experts = old.shape[0]
        added = old.new_zeros(experts, len(visible) * experts)
        if init == "uniform":
            bound = init_bound(self.hidden_dim, experts, layer)
            added.uniform_(-bound, bound)
        self.weight = nn.Parameter(torch.cat([old.detach(), added], 1), requires_grad=old.requires_grad)

    def hidden_logits(self, x_TD: Tensor, weight_O: Tensor) -> Tensor:
        return functional.linear(x_TD, weight_O)

    def choose(self, logits_TE: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x_TD = hidden_states.reshape(-1, self.hidden_dim)
        history = self._take_history()
        weight_O = self.weight[:, : self.hidden_dim].contiguous()
        logits_TE = self.hidden_logits(x_TD, weight_O)
        added_TE = self._history_logits(x_TD, history) if self.visible else None
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.detach):
            self._store(x_TD, weight_O, logits_TE, added_TE, history)
        if added_TE is not None:
            logits_TE = (logits_TE + added_TE).to(logits_TE.dtype)
        weights_TK, ids_TK = self.choose(logits_TE)
        return logits_TE, weights_TK, ids_TK

    def _store(
        self,
        x_TD: Tensor,
        weight_O: Tensor,
        logits_TE: Tensor,
        added_TE: Tensor | None,
        history: RoutingHistory,
    ) -> None:
        """Stores the softmax of fp32 logits, rounded once to the operand type, as the trainer does. If the
        model rounds its logits to bf16, the hidden state logits are recomputed."""
        dtype = operand_type(x_TD)
        if logits_TE.dtype != accumulation_type(dtype):
            logits_TE = wide_product(x_TD, weight_O)
        probs_TE = (logits_TE if added_TE is None else logits_TE + added_TE).softmax(-1)
        history.store(self.layer, probs_TE.to(dtype) if self.detach else round_through(probs_TE, dtype))

    def _history_logits(self, x_TD: Tensor, history: RoutingHistory) -> Tensor:
        seen, sumsq = ([t.to(x_TD.device) for t in kind] for kind in history.visible(self.visible))
        weight_R = self.weight[:, self.hidden_dim :]
        x_TD = x_TD.to(weight_R.dtype)
        if self.detach:
            return torch.ops.hero.history_logits(
                x_TD, weight_R, seen, sumsq, self.depth_factor, self.eps, self.scale
            )
        return history_logits_through(x_TD, weight_R, seen, self.depth_factor, self.eps, self.scale)

    def _take_history(self) -> RoutingHistory:
        current: _Pass | None = getattr(_pending, "current", None)
        _pending.current = None
        if current is None:
            raise RuntimeError("this router needs the routing history; call the whole model instead")
        if not self.detach and current.with_gradient != torch.is_grad_enabled():
            raise RuntimeError(
                "detach=False: reentrant gradient checkpointing would lose the history's gradient; "
                'expected gradient_checkpointing_kwargs={"use_reentrant": False}'
            )
        return current.history


class _SoftmaxGate(_HistoryGate):
    top_k: int
    norm_topk_prob: bool

    def choose(self, logits_TE: Tensor) -> tuple[Tensor, Tensor]:
        weights_TK, ids_TK = sparse_route(logits_TE, self.top_k, normalize=self.norm_topk_prob)
        return weights_TK.to(logits_TE.dtype), ids_TK


class HistoryQwen3MoeRouter(_SoftmaxGate, Qwen3MoeTopKRouter):
    """Qwen3-MoE's router with routing history."""


class HistoryOlmoeRouter(_SoftmaxGate, OlmoeTopKRouter):
    """OLMoE's router with routing history."""


class HistoryMixtralRouter(_HistoryGate, MixtralTopKRouter):
    """Mixtral's router with routing history; its weights stay fp32."""

    def choose(self, logits_TE: Tensor) -> tuple[Tensor, Tensor]:
        return sparse_route(logits_TE, self.top_k)


class HistoryDeepseekV3Router(_HistoryGate, DeepseekV3TopkRouter):
    """DeepSeek-V3's router with routing history: group-limited top-k of sigmoid scores."""

    def hidden_logits(self, x_TD: Tensor, weight_O: Tensor) -> Tensor:
        return functional.linear(x_TD.float(), weight_O.float())

    def choose(self, logits_TE: Tensor) -> tuple[Tensor, Tensor]:
        return sparse_route(
            logits_TE,
            self.top_k,
            score="sigmoid",
            bias=self.e_score_correction_bias,
            groups=self.num_group,
            top_groups=self.topk_group,
            normalize=self.norm_topk_prob,
            scaling=self.routed_scaling_factor,
            ordered=False,
        )


_GATES: dict[type[nn.Module], type[_HistoryGate]] = {
    Qwen3MoeTopKRouter: HistoryQwen3MoeRouter,
    DeepseekV3TopkRouter: HistoryDeepseekV3Router,
    MixtralTopKRouter: HistoryMixtralRouter,
    OlmoeTopKRouter: HistoryOlmoeRouter,
}
_SUPPORTED = "Qwen3-MoE, DeepSeek-V3, Mixtral or OLMoE model of transformers"


def _start_forward(model: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return args, {**kwargs, _ARGUMENT: _Pass()}


def _pass_history(attention: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    _pending.current = kwargs.pop(_ARGUMENT, None)
    return args, kwargs


def patch(
    model: nn.Module,
    window: int | None = None,
    stages: int | Sequence[int] = 1,
    *,
    init: str = "zero",
    scale: bool = True,
    eps: float = 1e-6,
    history: str = "stage",
    detach: bool = True,
) -> nn.Module:
    """Adds routing history to the routers of a Qwen3-MoE, DeepSeek-V3, Mixtral or OLMoE model, in place.

    Patch before creating the optimizer: every router's weight becomes a new parameter, [E, D] extended to
    [E, D+M*E]. Everything else works as before: caches and `generate`, `output_router_logits` and its balance
    loss, gradient checkpointing, `save_pretrained`. `model.config.hero_router`, and thus a saved config.json,
    contains the settings.

    Args:
        model: a bare model or one with a head, as transformers 5 loads it.
        window: a router reads at most this many preceding layers; None: all on its stage.
        stages: number of pipeline stages of the MoE layers, the first stages larger if they do not divide
            evenly; or the stage of every MoE layer, ascending from 0.
        init: "zero" keeps the model bit-identical; "uniform" samples the history weights from U(-b, b),
            b = 1/sqrt(D + (l-1) E).
        scale, eps, detach: as in HistoryRouter.
        history: "stage", or "global" for all preceding layers regardless of stages.

    Returns:
        The model.

    Raises:
        ValueError: for unsupported or already patched models, and for invalid options.
    """
    if init not in ("zero", "uniform"):
        raise ValueError(f"init: found {init!r}, expected 'zero' or 'uniform'")
    if history not in ("stage", "global"):
        raise ValueError(f"history: found {history!r}, expected 'stage' or 'global'")
    check_eps(eps)
    base = getattr(model, "base_model", None)
    layers = getattr(base, "layers", None)
    if not isinstance(base, nn.Module) or not isinstance(layers, nn.ModuleList):
        raise ValueError(f"patch: found {type(model).__name__}, expected a {_SUPPORTED}")
    gates = [module for layer in layers for module in layer.modules() if type(module) in _GATES]
    if any(isinstance(module, _HistoryGate) for module in layers.modules()):
        raise ValueError(f"patch: this {type(model).__name__} is already patched")
    if not gates:
        raise ValueError(f"patch: found no known router in {type(model).__name__}, expected a {_SUPPORTED}")
    for gate in gates:
        if "forward" in vars(gate) or not gate.weight.is_floating_point():
            raise ValueError("patch: found an offloaded or quantized router, expected plain weights")
    stage_of = _stages(stages, len(gates))
    chosen = []
    for l, stage in enumerate(stage_of, start=1):
        before = [j for j in range(1, l) if history == "global" or stage_of[j - 1] == stage]
        chosen.append(check_visible(l, before, window))
    options = {"scale": scale, "eps": eps, "detach": detach}
    for l, (gate, visible) in enumerate(zip(gates, chosen), start=1):
        gate.__class__ = _GATES[type(gate)]
        gate.adopt(l, visible, init, options)
    base.register_forward_pre_hook(_start_forward, with_kwargs=True)
    for layer in layers:
        layer.self_attn.register_forward_pre_hook(_pass_history, with_kwargs=True)
    model.config.hero_router = {"window": window, **options, "history": history, "stages": stage_of}
    return model


def _stages(stages: int | Sequence[int], layers: int) -> list[int]:
    """The stage of every MoE layer."""
    if isinstance(stages, numbers.Integral):
        if not 1 <= stages <= layers:
            raise ValueError(f"stages: found {stages}, expected 1 to {layers}, the number of MoE layers")
        return [s for s in range(stages) for _ in range(layers // stages + (s < layers % stages))]
    if not isinstance(stages, Sequence) or not all(isinstance(s, numbers.Integral) for s in stages):
        raise ValueError(f"stages: found {stages!r}, expected a number or the stage of every MoE layer")
    given = list(stages)
    steps = {later - earlier for earlier, later in zip(given, given[1:])}
    if len(given) != layers or given[0] != 0 or not steps <= {0, 1}:
        raise ValueError(
            f"stages: found {given}, expected the stage of each of {layers} MoE layers, ascending from 0 "
            "in steps of 1"
        )
    return given
