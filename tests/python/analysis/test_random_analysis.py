"""Random HERO models: what `hero analyze` reports about router weights and about one random layer's use of its history
equals numpy on the weights, and the routing and losses of copies of the run with blocks of these weights removed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from analysis_folder import dependency, effective_rank, visible_pairs
from layout_strategies import STEPS, stage_sizes, trained_models
from program import checkpoint, hero, run_hero
from random_cases import Case, expect_success, property_tests, reproduce
from random_data import train_words
from strategies import DrawFn, moe_layers

DATA = "second-valid"
TOLERANCE = 1e-9
Pair = tuple[int, int]  # a layer and a layer that it sees, from 1
Blocks = dict[Pair, np.ndarray]
Routing = dict[str, np.ndarray]  # logits [T, E] and experts [T, K] of a layer


@st.composite
def cases(draw: DrawFn) -> Case:
    """Without positions that depend on documents, which `hero logits` does not know, and without capacity."""
    options = draw(trained_models().filter(lambda options: options["router.kind"] == "hero"))
    return {
        "options": options
        | {
            "router.dtype": "train",
            "router.eval_capacity_factor": 0.0,
            "train.document_mask": False,
            "train.document_positions": False,
        },
        "sequence": draw(st.integers(1, options["model.max_position_embeddings"])),
        "batch": draw(st.integers(1, 9)),
        "pair": draw(st.integers(0, 99)),
        "prefix": draw(st.sampled_from(["", "centered_"])),
    }


class RouterRun:
    """A trained run with the history weights of its routers."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self.folder = folder
        self.width, self.experts = options["model.hidden_size"], options["model.num_experts"]
        weights = load_file(checkpoint(folder, STEPS) / "model.safetensors")
        self.layers = moe_layers(options)
        self.names = [
            next(
                name
                for name in weights
                if name.startswith(f"model.layers.{i}.") and name.endswith(".gate.weight")
            )
            for i in self.layers
        ]
        sizes = stage_sizes(options)
        stages = np.repeat(np.arange(len(sizes)), sizes).tolist()
        window = options["router.window"] or None
        self.scale = options["router.scale"]
        self.pairs = visible_pairs(len(self.layers), stages, options["router.history"], window)
        self.blocks: Blocks = {
            pair: weights[self.names[pair[0] - 1]][:, self.columns(pair)].astype(float) for pair in self.pairs
        }

    def seen(self, layer: int) -> list[int]:
        return [p for l, p in self.pairs if l == layer]

    def columns(self, pair: Pair) -> slice:
        first = self.width + self.seen(pair[0]).index(pair[1]) * self.experts
        return slice(first, first + self.experts)

    def changed(self, pairs: list[Pair], change: Callable[[np.ndarray], np.ndarray]) -> Path:
        """A copy of the run with other blocks."""
        copy = self.folder.with_name("changed")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder, copy)
        file = checkpoint(copy, STEPS) / "model.safetensors"
        weights = load_file(file)
        for pair in pairs:
            weights[self.names[pair[0] - 1]][:, self.columns(pair)] = change(self.blocks[pair])
        save_file(weights, file, {"format": "pt"})
        file.with_name("manifest.json").unlink()
        return copy


def removed(block: np.ndarray) -> np.ndarray:
    return np.zeros_like(block)


def row_means(block: np.ndarray) -> np.ndarray:
    """What centering removes, up to a shift of all logits."""
    return np.repeat(block.mean(axis=1, keepdims=True), block.shape[1], axis=1)


def routing(case: Case, run: Path, layer: int) -> Routing:
    """Of all inputs."""
    tokens = np.fromfile(run.parent / f"{DATA}.bin", np.uint16).astype(int)[:-1]
    windows = [tokens[i : i + case["sequence"]].tolist() for i in range(0, len(tokens), case["sequence"])]
    (run.parent / "ids.json").write_text(json.dumps(windows))
    files = ["--tokens", run.parent / "ids.json", "--out", run.parent / "routing"]
    run_hero("logits", run, *files, "--routing", "--dtype", "fp64")
    found = load_file(run.parent / "routing")
    return {
        name: np.concatenate([found[f"{key}.{n}.{layer}"] for n in range(len(windows))])
        for name, key in (("logits", "router_logits"), ("experts", "topk_ids"))
    }


def held_out_loss(case: Case, run: Path) -> float:
    data = run.parent / DATA
    run_hero("eval", run, "--data", data, "--sequence", case["sequence"], "--batch", case["batch"])
    return json.loads((run / "eval.json").read_text())["datasets"][0]["loss"]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def kl(logits: np.ndarray, others: np.ndarray) -> float:
    """Mean over tokens."""
    p, q = log_softmax(logits), log_softmax(others)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def overlap(experts: np.ndarray, others: np.ndarray) -> float:
    """Mean share of the experts that are also in `others`."""
    return float((experts[:, :, None] == others[:, None, :]).any(axis=2).mean())


def near(found: Any, want: Any, what: str) -> None:
    np.testing.assert_allclose(found, want, rtol=TOLERANCE, atol=TOLERANCE, err_msg=what)


def check_weights(run: RouterRun, analysis: dict[str, Any]) -> None:
    layers = len(run.layers)
    assert [(pair["layer"], pair["predecessor"]) for pair in analysis["pairs"]] == run.pairs
    centered = {
        pair: block - row_means(block) - row_means(block.T).T + block.mean()
        for pair, block in run.blocks.items()
    }
    factor = {
        (layer, p): ((layer - 1) / len(run.seen(layer))) ** 0.5 if run.scale else 1.0
        for layer, p in run.pairs
    }
    for prefix, blocks in (("", run.blocks), ("centered_", centered)):
        for row, (pair, block) in zip(analysis["pairs"], blocks.items(), strict=True):
            near(row["depth_factor"], factor[pair], "depth factor")
            near(row[f"{prefix}norm"], np.linalg.norm(block), "norm")
            if np.abs(block).max() > 1e-12:
                np.testing.assert_allclose(row[f"{prefix}effective_rank"], effective_rank(block), rtol=1e-6)
        found = analysis[f"{prefix}layer_dependency"]
        near(found, dependency(blocks, factor, layers), f"{prefix}dependency")
        if not blocks:
            assert analysis[f"{prefix}tau"] is None and analysis[f"{prefix}coupling_by_distance"] == []
            continue
        magnitudes = np.abs(np.concatenate([block.ravel() for block in blocks.values()]))
        near(analysis[f"{prefix}tau"], np.percentile(magnitudes, 90), f"{prefix}tau")
        distances = sorted({layer - p for layer, p in blocks})
        assert [row["distance"] for row in analysis[f"{prefix}coupling_by_distance"]] == distances
    bias = np.zeros((layers, run.experts))
    for (layer, _), block in run.blocks.items():
        bias[layer - 1] += block.mean(axis=1) - block.mean()
    near(analysis["expert_bias"], bias, "bias")


def check_layer(case: Case, run: RouterRun, analysis: dict[str, Any], pair: Pair) -> None:
    """A layer's own router weights do not change its input: its logits without history are those of the hidden state."""
    layer, p = pair
    whole = routing(case, run.folder, layer)
    hidden = routing(case, run.changed([(layer, q) for q in run.seen(layer)], removed), layer)
    history = whole["logits"] - hidden["logits"]
    variances = [part.var(axis=1).mean() for part in (history, hidden["logits"])]
    near(analysis["history"][layer - 1]["variance_share"], variances[0] / sum(variances), "variance share")
    agreement = next(row for row in analysis["agreement"] if row["layer"] == layer)
    alone = next(row for row in analysis["history_alone"] if row["layer"] == layer)
    near(agreement["top_k"], overlap(whole["experts"], hidden["experts"]), "agreement")
    first = [part.argmax(axis=1) for part in (whole["logits"], hidden["logits"])]
    near(agreement["top_1"], (first[0] == first[1]).mean(), "agreement of the best")
    near(alone["kl"], kl(whole["logits"], history), "KL of the history alone")
    if np.abs(history).max() > TOLERANCE:  # else all its logits are equal
        best = np.argsort(-history, axis=1, kind="stable")[:, : whole["experts"].shape[1]]
        near(alone["top_k"], overlap(whole["experts"], best), "history alone")
        near(alone["top_1"], (first[0] == best[:, 0]).mean(), "best of the history alone")
    prefix, removal = case["prefix"], analysis["removal"]
    change = row_means if prefix else removed
    without = routing(case, run.changed([pair], change), layer)
    moved, divergence = (removal[f"{prefix}routing_{key}"][layer - 1][p - 1] for key in ("change", "kl"))
    near(moved, 1 - overlap(whole["experts"], without["experts"]), f"{prefix}routing change")
    near(divergence, kl(whole["logits"], without["logits"]), f"{prefix}KL")
    losses = next(row for row in removal["loss_without"] if row["predecessor"] == p)
    copy = run.changed([(l, q) for l, q in run.pairs if q == p], change)
    near(losses[f"{prefix}loss"], held_out_loss(case, copy), f"{prefix}loss without layer {p}")


def check(case: Case, folder: Path) -> None:
    options, run = case["options"], folder / "run"
    done = hero(*train_words(run, options | {"checkpoint.every": 0}), cwd=folder)
    expect_success(done.returncode, done.stderr, options)
    run_hero("analyze", run, "--out", folder / "analysis", "--data", folder / DATA, "--sequence", case["sequence"],
        "--batch", case["batch"], "--numbers-only")  # fmt: skip
    analysis = json.loads((folder / "analysis" / "analysis.json").read_text())
    routers = RouterRun(run, options)
    check_weights(routers, analysis)
    if routers.pairs:
        check_layer(case, routers, analysis, routers.pairs[case["pair"] % len(routers.pairs)])


test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    reproduce(check)
