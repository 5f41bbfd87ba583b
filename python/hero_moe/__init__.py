"""Routers that read the routing history (HERO-MoE), for PyTorch models; and the reports of `hero`.

`HistoryRouter` is the router as a module, `patch` adds it to a transformers model, `load` opens a model
folder with our own engine, `torch.ops.hero.*` are the operators. torch is imported on first use of a name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hero_moe.lazy_names import lazy_names
from hero_moe.openmp import limit_spinning

if TYPE_CHECKING:
    from hero_moe.language_model import LanguageModel, load
    from hero_moe.patching import patch
    from hero_moe.policy import sparse_route
    from hero_moe.router import HistoryRouter, RoutingHistory

_MODULES = {
    "HistoryRouter": "router",
    "LanguageModel": "language_model",
    "RoutingHistory": "router",
    "load": "language_model",
    "patch": "patching",
    "sparse_route": "policy",
}

__all__ = ["HistoryRouter", "LanguageModel", "RoutingHistory", "load", "patch", "sparse_route"]

limit_spinning()
__getattr__, __dir__ = lazy_names(globals(), _MODULES)
