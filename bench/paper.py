"""The paper's model in benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rounds import ROOT, hero_json, spread, table

CONFIG = ROOT / "configs/paper-8b.toml"
LAYERS = 30
# Tables of `hero cost`.
ON_CPU = "resident memory of hero train on CPUs"
ON_GPU = "memory of a device"


def layers_that_fit(words: Sequence[Any], available: float, table: str) -> int:
    """The largest even number of layers whose peak in `table` of `hero cost` is at most 95% of the available
    bytes; at least 2."""
    layers = 2
    while layers < LAYERS:
        longer = ["--config", CONFIG, *words, f"--model.num_hidden_layers={layers + 2}"]
        if hero_json("cost", *longer, "--json")[table]["peak"]["hero"] > 0.95 * available:
            break
        layers += 2
    return layers


def router_times(found: dict[str, Any]) -> list[str]:
    """A page section from the output of build/bench_router_step."""
    rows = [
        [name.replace("_", ", "), spread([1e3 * value for value in values], 1)]
        for name, values in found["seconds"].items()
    ]
    return [
        f"Routers of the paper's model, {found['layers']} layers of 128 experts in two stages, hidden size 1,024, "
        f"{found['tokens']:,} tokens: forward and backward of all routers. Concatenating: one linear layer "
        "on the "
        "concatenated history and hidden state, with PyTorch's own operators. RMoE: p = 256, also of PyTorch's "
        "operators.",
        "",
        *table(["", "ms"], rows),
    ]
