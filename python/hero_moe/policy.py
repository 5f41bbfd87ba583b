"""The sparse policy: the experts of a token and their weights. History affects only the logits."""

from __future__ import annotations

import torch
from torch import Tensor


def sparse_route(
    logits_TE: Tensor,
    k: int,
    *,
    score: str = "softmax",
    bias: Tensor | None = None,
    groups: int = 1,
    top_groups: int = 1,
    normalize: bool = True,
    scaling: float = 1.0,
    eps: float = 1e-20,
    ordered: bool = True,
) -> tuple[Tensor, Tensor]:
    """Chooses k of E experts for each token.

    Args:
        logits_TE: router logits. Scores are computed in fp32, or fp64 from fp64.
        score: "softmax" over the experts, or "sigmoid" of each.
        bias: [E], added to the scores for the selection only (arXiv 2408.15664).
        groups: with more than one, E is split into groups of E/groups experts, and only the `top_groups`
            groups with the greatest sum of their two best scores are eligible (DeepSeek-V3, arXiv
            2412.19437).
        normalize: divide a token's weights by their sum plus `eps`.
        scaling: factor of the weights after normalization.
        ordered: best expert first; otherwise in any order.

    Returns:
        weights_TK, differentiable, and ids_TK int64.

    Raises:
        ValueError: for an invalid `score`, `k` or grouping.
    """
    experts = logits_TE.shape[-1]
    if score not in ("softmax", "sigmoid"):
        raise ValueError(f"score: found {score!r}, expected 'softmax' or 'sigmoid'")
    if groups < 1 or experts % groups or not 1 <= top_groups <= groups:
        raise ValueError(
            f"groups: found {groups} with top_groups {top_groups}, expected a divisor of {experts} experts "
            f"and 1 <= top_groups <= groups"
        )
    eligible = experts // groups * top_groups
    if not 1 <= k <= eligible:
        raise ValueError(f"k: found {k}, expected 1 to {eligible}, the eligible experts")
    wide = logits_TE if logits_TE.dtype == torch.float64 else logits_TE.float()
    scores_TE = wide.softmax(-1) if score == "softmax" else wide.sigmoid()
    eligible_TE = scores_TE if bias is None else scores_TE + bias
    if groups > 1:
        eligible_TE = _limit_to_groups(eligible_TE, groups, top_groups)
    ids_TK = eligible_TE.topk(k, dim=-1, sorted=ordered).indices
    weights_TK = scores_TE.gather(-1, ids_TK)
    if normalize:
        weights_TK = weights_TK / (weights_TK.sum(-1, keepdim=True) + eps)
    if scaling != 1.0:
        weights_TK = weights_TK * scaling
    return weights_TK, ids_TK


def _limit_to_groups(scores_TE: Tensor, groups: int, top_groups: int) -> Tensor:
    """Minus infinity for experts outside the best groups."""
    per_group = scores_TE.shape[-1] // groups
    best = scores_TE.unflatten(-1, (groups, per_group)).topk(min(2, per_group), dim=-1).values.sum(-1)
    chosen = torch.zeros_like(best, dtype=torch.bool).scatter(-1, best.topk(top_groups, dim=-1).indices, True)
    return scores_TE.masked_fill(~chosen.repeat_interleave(per_group, -1), float("-inf"))
