"""Registers hero_moe.evals.harness as `lm_eval --model hero`.

lm_eval 0.4.13 has a model registry but no documented way for another package to add to it: --include_path
reads tasks only. Therefore hero_moe_lm_eval.pth, which Python reads at startup, calls `watch`: the model is
registered when a program imports lm_eval.models; nothing is imported before that. Later versions discover
entry points of the group lm_eval.models (EleutherAI/lm-evaluation-harness#4013), which will replace these two
files.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing would be slower than the rest
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

WATCHED = "lm_eval.models"


def register() -> None:
    """Adds the model `hero` to lm_eval's registry if it is missing."""
    from lm_eval.api.registry import model_registry

    if "hero" not in model_registry:
        model_registry.register("hero", target="hero_moe.evals.harness:HeroLM")


class _Finder:
    """Delegates to Python's finder and registers the model after executing the watched module."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != WATCHED:
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: ModuleType) -> None:
                run(module)
                try:
                    register()
                except ImportError:
                    pass  # an older lm_eval with a different registry

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


def watch() -> None:
    """Registers the model when lm_eval.models is imported."""
    sys.meta_path.insert(0, _Finder)
