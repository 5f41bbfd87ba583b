"""Makes `lm_eval --model hero` find hero_moe.evals.harness.

lm_eval looks models up in a registry of names and has no entry points for those of other packages. So
hero_moe_lm_eval.pth, which Python reads when it starts, calls `watch`: the name is added when a program
imports lm_eval.models, and before that nothing is imported.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # what typing says too; importing it would take longer than all the rest
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

WATCHED = "lm_eval.models"


def register() -> None:
    """Adds the model `hero` to lm_eval's registry, unless it is there."""
    from lm_eval.api.registry import model_registry

    if "hero" not in model_registry:
        model_registry.register("hero", target="hero_moe.evals.harness:HeroLM")


class _Finder:
    """Leaves finding to Python; the one module watched for gets a step more when it is run."""

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
                    pass  # an older lm_eval, with another registry

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


def watch() -> None:
    """Registers the model as soon as lm_eval.models is imported."""
    sys.meta_path.insert(0, _Finder)
