"""A synthetic output folder of `hero analyze`: structured blocks and consistent values derived from them.

Values that need a forward pass (agreement, removal, paths) are random with the correct shape.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

WORDS = ["The", " router", " reads", " its", " own", " history", ",", "\n", "历史", " <b>&", "\t", " expert"]


def visible_pairs(layers: int, stages: list[int], history: str, window: int | None) -> list[tuple[int, int]]:
    """(layer, predecessor), from 1, of all visible pairs."""
    return [
        (layer, earlier)
        for layer in range(2, layers + 1)
        for earlier in range(1, layer)
        if (history == "global" or stages[layer - 1] == stages[earlier - 1])
        and (window is None or layer - earlier <= window)
    ]


def block(noise: np.random.Generator, experts: int, distance: int) -> np.ndarray:
    """Noise with strong columns (sources) and weak rows (targets), decreasing with distance."""
    values = 0.02 * noise.standard_normal((experts, experts))
    columns = noise.choice(experts, max(1, experts // 10), replace=False)
    values[:, columns] += 0.05 * noise.choice([-1.2, 1.0], len(columns))
    values[noise.choice(experts, max(1, experts // 12), replace=False)] *= 0.1
    return (values / distance**0.4).astype(np.float32)


def center(values: np.ndarray) -> np.ndarray:
    """Without the means of columns and rows."""
    wide = values.astype(float)
    means = wide.mean(axis=0) + wide.mean(axis=1, keepdims=True) - wide.mean()
    return (wide - means).astype(np.float32)


def norm(values: np.ndarray) -> float:
    return float(np.linalg.norm(values.astype(float)))


def dependency(
    blocks: dict[tuple[int, int], np.ndarray], factor: dict[tuple[int, int], float], layers: int
) -> list[list[float]]:
    """Norms times depth factors, [L][L]."""
    table = np.zeros((layers, layers))
    for (layer, earlier), values in blocks.items():
        table[layer - 1, earlier - 1] = factor[layer, earlier] * norm(values)
    return table.tolist()


def effective_rank(values: np.ndarray) -> float:
    singular = np.linalg.svd(values.astype(float), compute_uv=False)
    parts = singular[singular > 0] / singular.sum()
    return float(np.exp(-(parts * np.log(parts)).sum()))


def peak(share: np.ndarray) -> dict[str, Any]:
    layer, expert = np.unravel_index(share.argmax(), share.shape)
    return {"share": float(share.max()), "layer": int(layer) + 1, "expert": int(expert)}


def write_analysis(
    folder: Path,
    *,
    layers: int = 6,
    experts: int = 16,
    top_k: int = 2,
    stages: list[int] | None = None,
    history: str = "stage",
    window: int | None = None,
    data: bool = True,
    baseline: bool = True,
    texts: bool = True,
    tokens: int = 40,
    seed: int = 1,
) -> dict[str, Any]:
    """Writes both files to a new `folder` and returns the content of `analysis.json`."""
    noise, stages = np.random.default_rng(seed), stages or [0] * layers
    places = visible_pairs(layers, stages, history, window)
    blocks = {place: block(noise, experts, place[0] - place[1]) for place in places}
    seen = {layer: sum(place[0] == layer for place in places) for layer in range(1, layers + 1)}
    centered = {place: center(values) for place, values in blocks.items()}
    bias = np.zeros((layers, experts))
    for (layer, _), values in blocks.items():
        means = values.astype(float).mean(axis=1)
        bias[layer - 1] += means - means.mean()
    factor = {place: ((place[0] - 1) / seen[place[0]]) ** 0.5 for place in places}
    pairs = [
        {"layer": place[0], "predecessor": place[1], "depth_factor": factor[place], "norm": norm(blocks[place]),
         "effective_rank": effective_rank(blocks[place]), "centered_norm": norm(centered[place]),
         "centered_effective_rank": effective_rank(centered[place])}
        for place in places
    ]  # fmt: skip
    (tau, distances), (centered_tau, centered_distances) = map(strong_coupling, (blocks, centered))
    neighbors = [place for place in places if place[0] - place[1] == 1]
    middle = neighbors[(len(neighbors) - 1) // 2] if neighbors else None
    default = (10, 9) if (10, 9) in places else middle
    content: dict[str, Any] = {
        "model": {"folder": "hero", "step": 600, "layers": layers, "experts": experts, "top_k": top_k,
                  "hidden_size": 8 * experts, "stages": stages, "window": window, "scale": True,
                  "history": history, "detach": True, "decoder_layer": list(range(layers))},
        "layer_dependency": dependency(blocks, factor, layers),
        "tau": tau,
        "coupling_by_distance": distances,
        "centered_layer_dependency": dependency(centered, factor, layers),
        "centered_tau": centered_tau,
        "centered_coupling_by_distance": centered_distances,
        "expert_bias": bias.tolist(),
        "pairs": pairs,
        "default_pair": default and {"layer": default[0], "predecessor": default[1]},
    }  # fmt: skip
    if data:
        content |= forward_parts(noise, content, seen, baseline, texts, tokens)
    folder.mkdir(parents=True)
    tensors = {
        f"{name}.{layer}.{earlier}": values
        for name, of in (("coupling", blocks), ("centered", centered))
        for (layer, earlier), values in of.items()
    }
    tensors |= {f"expert_bias.{layer}": bias[layer - 1].astype(np.float32) for layer in seen if seen[layer]}
    save_file(tensors, folder / "analysis.safetensors")
    (folder / "analysis.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return content


def strong_coupling(
    blocks: dict[tuple[int, int], np.ndarray],
) -> tuple[float | None, list[dict[str, float]]]:
    """The 90th percentile of the magnitudes, and the percentages beyond it by distance."""
    if not blocks:
        return None, []
    tau = float(np.percentile(np.abs(np.concatenate([values.ravel() for values in blocks.values()])), 90))
    distances = []
    for distance in sorted({layer - earlier for layer, earlier in blocks}):
        entries = np.stack([values for place, values in blocks.items() if place[0] - place[1] == distance])
        below, above = (100 * float(part.mean()) for part in (entries < -tau, entries > tau))
        distances.append(
            {"distance": distance, "negative": below, "positive": above, "entries": entries.size}
        )
    return tau, distances


def forward_parts(
    noise: np.random.Generator,
    content: dict[str, Any],
    seen: dict[int, int],
    baseline: bool,
    texts: bool,
    tokens: int,
) -> dict[str, Any]:
    """The parts that need `--data`."""
    model, places = content["model"], [(pair["layer"], pair["predecessor"]) for pair in content["pairs"]]
    layers, experts, chosen = model["layers"], model["experts"], model["top_k"]
    share = chosen * noise.dirichlet([9.0] * experts, layers)
    before = chosen * noise.dirichlet([4.0] * experts, layers)
    utilization: dict[str, Any] = {"peak": peak(share)}
    if baseline:
        utilization["baseline"] = {"folder": "baseline", "top_k": chosen, "loss": 3.28,
                                   "expert_share": before.tolist(), "peak": peak(before)}  # fmt: skip
        utilization["peak_change_percent"] = 100 * (share.max() / before.max() - 1)
    readers = [layer for layer in range(1, layers + 1) if seen[layer]]
    initial = [(layer - 1) / (layer - 1 + 8) if seen[layer] else 0.0 for layer in range(1, layers + 1)]
    change, divergence, centered_change, centered_divergence = np.zeros((4, layers, layers))
    for layer, earlier in places:
        cell = layer - 1, earlier - 1
        size = content["layer_dependency"][layer - 1][earlier - 1]
        change[cell] = min(0.9, 0.1 * size / experts**0.5 * (1 + 0.5 * noise.random()))
        divergence[cell] = 0.02 * size * noise.random()
        centered_change[cell], centered_divergence[cell] = 0.7 * change[cell], 0.5 * divergence[cell]
    ids = noise.integers(0, len(WORDS), tokens)
    order = np.argsort(noise.random((layers, tokens, experts)), axis=-1)[..., :chosen]
    weights = -np.sort(-noise.dirichlet([1.0] * chosen, (layers, tokens)), axis=-1)
    sources = sorted({earlier for _, earlier in places})
    losses = [3.2 + 0.02 * noise.standard_normal() + 0.05 / source for source in sources]
    return {
        "data": {"names": ["valid"], "tokens": 81920, "sequence": 256, "loss": 3.2},
        "expert_share": share.tolist(),
        "utilisation": utilization,
        "history": [{"layer": layer, "visible": seen[layer],
                     "variance_share": float(0.2 + 0.3 * noise.random()) if seen[layer] else None,
                     "initial_variance_share": initial[layer - 1]} for layer in range(1, layers + 1)],
        "agreement": [{"layer": layer, "top_k": noise.uniform(0.7, 0.9), "top_1": noise.uniform(0.65, 0.85)}
                      for layer in readers],
        "history_alone": [{"layer": layer, "top_k": noise.uniform(0.3, 0.5), "top_1": noise.uniform(0.2, 0.4),
                           "chance_top_k": chosen / experts, "kl": noise.uniform(0.5, 1.5)}
                          for layer in readers],
        "removal": {"routing_change": change.tolist(), "routing_kl": divergence.tolist(),
                    "centered_routing_change": centered_change.tolist(),
                    "centered_routing_kl": centered_divergence.tolist(),
                    "loss_without": [{"predecessor": source, "loss": loss, "loss_change": loss - 3.2,
                                      "centered_loss": (loss + 3.2) / 2, "centered_loss_change": (loss - 3.2) / 2}
                                     for source, loss in zip(sources, losses)],
                    "rank_correlation": 0.81, "centered_rank_correlation": 0.67},
        "paths": {"ids": ids.tolist(), "text": [WORDS[i] for i in ids] if texts else None,
                  "experts": order.tolist(), "weights": weights.tolist()},
    }  # fmt: skip
