"""A synthetic study folder with known losses."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import write_run
from hero_moe.study.reading import COSTS

STEPS, SEEDS = 60, (1, 2, 3)
LOWER = {"baseline": (0.0, 0.0, 0.0), "hero": (0.02, 0.03, 0.04), "mask1": (0.01, -0.02, 0.01)}


def cost(router: float) -> dict[str, float]:
    return {key: (router if key.startswith("router") else 1000.0 + router) for key in COSTS}


def write_study(folder: Path) -> Path:
    """Three variants with three seeds each, and one with the same model as hero; returns `folder`."""
    variants = []
    for name, lower in LOWER.items():
        runs = {}
        for seed, by in zip(SEEDS, lower):
            kind = "baseline" if name == "baseline" else "hero"
            write_run(folder / f"seed-{seed}" / name, kind=kind, steps=STEPS, lower=by, seed=seed)
            runs[str(seed)] = f"seed-{seed}/{name}"
        router = 100.0 if name == "baseline" else 150.0
        variants.append({"name": name, "same_as": None, "layers_cut": 0, "cost": cost(router), "runs": runs})
    variants[2]["layers_cut"] = 4
    variants.append({"name": "mask9", "same_as": "hero", "layers_cut": 0, "cost": cost(150.0), "runs": {}})
    description = {"format": 1, "config": "small.toml", "model_type": "qwen3_moe", "moe_layers": 6, "experts": 16,
                   "top_k": 2, "steps": STEPS, "tokens_per_step": 2048, "seeds": list(SEEDS),
                   "variants": variants}  # fmt: skip
    (folder / "study.json").write_text(json.dumps(description))
    return folder
