"""The routing history and a router that reads it (HERO-MoE, "Stage-Local Historical Routing")."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

import hero_moe.library  # noqa: F401  torch.ops.hero


def accumulation_type(dtype: torch.dtype) -> torch.dtype:
    """The type of logits, softmax and sums: fp64 for fp64, else fp32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class RoutingHistory(Mapping[int, Tensor]):
    """Routing of the MoE layers in one forward pass: layer number (from 1) -> probabilities [T, E], detached.

    Create a new one for every forward pass. A token's history does not extend beyond its own pass, so
    decoding with a cache needs nothing else.
    """

    def __init__(self) -> None:
        self._probs: dict[int, Tensor] = {}
        self._sumsq: dict[int, Tensor] = {}

    def __getitem__(self, layer: int) -> Tensor:
        return self._probs[layer]

    def __setitem__(self, layer: int, probs_TE: Tensor) -> None:
        self.store(layer, probs_TE.detach())

    def __iter__(self) -> Iterator[int]:
        return iter(self._probs)

    def __len__(self) -> int:
        return len(self._probs)

    def store(self, layer: int, probs_TE: Tensor, sumsq_T: Tensor | None = None) -> None:
        """Stores probabilities unchanged, with their sums of squares per token (computed here if None)."""
        if sumsq_T is None:
            sumsq_T = probs_TE.detach().to(accumulation_type(probs_TE.dtype)).square().sum(-1)
        self._probs[layer] = probs_TE
        self._sumsq[layer] = sumsq_T

    def visible(self, layers: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
        """Probabilities and sums of squares of these layers. KeyError if one is missing."""
        for layer in layers:
            if layer not in self._probs:
                raise KeyError(f"the history has no layer {layer}, found layers {sorted(self._probs)}")
        return [self._probs[layer] for layer in layers], [self._sumsq[layer] for layer in layers]


def check_visible(layer: int, visible: Sequence[int], window: int | None) -> tuple[int, ...]:
    """The layers that router `layer` reads: the last `window` of `visible`. ValueError if invalid."""
    visible = tuple(visible)
    if layer < 1:
        raise ValueError(f"layer: found {layer}, expected a number from 1")
    if any(later <= earlier for earlier, later in zip((0, *visible), (*visible, layer))):
        raise ValueError(f"visible: found {tuple(visible)}, expected ascending numbers in [1, {layer})")
    if window is not None and (not isinstance(window, numbers.Integral) or window < 1):
        raise ValueError(f"window: found {window}, expected None or a number from 1")
    return visible if window is None else visible[-window:]


def check_eps(eps: float) -> None:
    """ValueError unless 0 or more."""
    if not eps >= 0:
        raise ValueError(f"eps: found {eps}, expected a number of at least 0")


def init_bound(hidden_size: int, num_experts: int, layer: int) -> float:
    """b of the initial U(-b, b); depends on the layer's depth, not on the number of visible layers."""
    return 1.0 / math.sqrt(hidden_size + (layer - 1) * num_experts)


def operand_type(x: Tensor) -> torch.dtype:
    """The type of a router's operands and of the history it writes: x's own, or autocast's."""
    if x.dtype != torch.float64 and torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def round_through(probs: Tensor, dtype: torch.dtype) -> Tensor:
    """`probs` rounded to `dtype`, in its own type; the gradient passes unchanged (straight-through)."""
    if probs.dtype == dtype:
        return probs
    # Exact: the difference to the rounded value is representable, and so is the sum.
    return probs + (probs.to(dtype).to(probs.dtype) - probs).detach()


def wide_product(x: Tensor, weight: Tensor) -> Tensor:
    """x weight^T of operands in `operand_type`, in fp32 (fp64 from fp64), also under autocast."""
    dtype = operand_type(x)
    wide = accumulation_type(dtype)
    with torch.autocast(x.device.type, enabled=False):
        return functional.linear(x.to(dtype).to(wide), weight.to(dtype).to(wide))


def history_logits_through(
    x_TD: Tensor, weight_R: Tensor, history: Sequence[Tensor], depth_factor: float, eps: float, scale: bool
) -> Tensor:
    """(rho * H) W_R^T [T, E] with gradients to the history and through rho, in fp32 (fp64 from fp64)."""
    dtype = operand_type(x_TD)
    wide = accumulation_type(dtype)
    h = torch.cat(tuple(history), dim=1).to(wide)
    logits = wide_product(h, weight_R)
    if not scale:
        return logits
    rms_x, rms_h = (t.square().mean(1, keepdim=True).sqrt() for t in (x_TD.to(dtype).to(wide), h))
    return depth_factor * rms_x / (rms_h + eps) * logits


class HistoryRouter(nn.Module):
    """Z = x W_O^T + (rho * H) W_R^T: a linear router that also reads how earlier layers routed the token.

    H is the concatenated softmax of the visible layers' logits, detached, oldest first; rho = RMS(x) /
    (RMS(H) + eps) * sqrt((layer - 1) / M), per token and without gradient, keeps it at the scale of the
    hidden state. With no visible layer it is an ordinary router. In bf16, and under autocast, logits and
    softmax are fp32.

    Args:
        hidden_size: D.
        num_experts: E.
        layer: number of this MoE layer in the whole model, from 1; dense layers do not count.
        visible: numbers of the preceding MoE layers on this layer's pipeline stage, ascending.
        window: read only the last `window` of them; None: all.
        scale: False sets rho = 1.
        eps: added to RMS(H) in rho.
        detach: False propagates gradients through the history and rho, unlike the paper's model.

    Attributes:
        weight: [E, D+M*E], W_O then one block per visible layer; initially U(-b, b) with
            b = 1/sqrt(D + (layer-1) E).
    """

    def __init__(
        self,
        hidden_size: int,
        num_experts: int,
        *,
        layer: int,
        visible: Sequence[int] = (),
        window: int | None = None,
        scale: bool = True,
        eps: float = 1e-6,
        detach: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if hidden_size < 1 or num_experts < 1:
            raise ValueError(
                f"hidden_size, num_experts: found {hidden_size}, {num_experts}, expected numbers from 1"
            )
        check_eps(eps)
        self.visible = check_visible(layer, visible, window)
        self.hidden_size, self.num_experts, self.layer, self.window = hidden_size, num_experts, layer, window
        self.scale, self.eps, self.detach = scale, eps, detach
        self.depth_factor = math.sqrt((layer - 1) / len(self.visible)) if self.visible else 1.0
        columns = hidden_size + len(self.visible) * num_experts
        self.weight = nn.Parameter(torch.empty(num_experts, columns, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = init_bound(self.hidden_size, self.num_experts, self.layer)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x_TD: Tensor, history: RoutingHistory) -> tuple[Tensor, Tensor]:
        """Returns logits_TE and probs_TE = softmax(logits), both differentiable, fp32 (fp64 from fp64).

        Reads the visible layers of `history` (KeyError if one is missing) and stores its own probabilities
        there under `layer`, rounded to the type of x (autocast's under autocast).
        """
        seen, sumsq = history.visible(self.visible)
        if self.detach:
            logits, probs, own = torch.ops.hero.route(
                x_TD, self.weight, seen, sumsq, self.depth_factor, self.eps, self.scale
            )
            history.store(self.layer, probs.detach().to(operand_type(x_TD)), own)
            return logits, probs
        logits = wide_product(x_TD, self.weight[:, : self.hidden_size])
        if seen:
            weight_R = self.weight[:, self.hidden_size :]
            logits = logits + history_logits_through(
                x_TD, weight_R, seen, self.depth_factor, self.eps, self.scale
            )
        probs = logits.softmax(-1)
        history.store(self.layer, round_through(probs, operand_type(x_TD)))
        return logits, probs

    def extra_repr(self) -> str:
        return (
            f"hidden_size={self.hidden_size}, num_experts={self.num_experts}, layer={self.layer}, "
            f"visible={self.visible}, scale={self.scale}, eps={self.eps}, detach={self.detach}"
        )
