"""`hero analyze`: its results against numpy on the weights and against other commands."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from program import (
    ENVIRONMENT,
    PROGRAM,
    assert_exit_2,
    checkpoint,
    folder_bytes,
    hero,
    run_hero,
    training,
    write_megatron,
)

D, E, K, LAYERS, SEQUENCE = 64, 8, 2, 6, 64
STAGES = [0, 0, 0, 1, 1, 1]
SETTINGS = {"model.num_hidden_layers": LAYERS, "train.dtype": "fp32", "checkpoint.keep": 1}
HERO = {"router.kind": "hero", "router.stages": 2}

Analysis = dict[str, Any]
WEIGHTS = ("layer_dependency", "tau", "coupling_by_distance", "centered_layer_dependency", "centered_tau",
           "centered_coupling_by_distance", "expert_bias", "pairs")  # fmt: skip


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs `hero`, with two stages, and `baseline`."""
    folder = tmp_path_factory.mktemp("analyze")
    run_hero(*training(folder / "hero", data, SETTINGS | HERO))
    run_hero(*training(folder / "baseline", data, SETTINGS))
    return folder


@pytest.fixture(scope="module")
def analysis(runs: Path, data: Path) -> Analysis:
    """Analysis of the whole validation split."""
    out = runs / "analysis"
    run_hero("analyze", runs / "hero", "--out", out, "--data", data, "--baseline", runs / "baseline",
        "--batch", 4, "--numbers-only")  # fmt: skip
    return json.loads((out / "analysis.json").read_text())


@pytest.fixture(scope="module")
def blocks(runs: Path) -> dict[tuple[int, int], np.ndarray]:
    """W_R^(l,p) by (l, p), sliced from the checkpoint."""
    weights = load_file(checkpoint(runs / "hero", 6) / "model.safetensors")
    found = {}
    for layer in range(1, LAYERS + 1):
        seen = [p for p in range(1, layer) if STAGES[p - 1] == STAGES[layer - 1]]
        router = weights[f"model.layers.{layer - 1}.mlp.gate.weight"]
        assert router.shape == (E, D + len(seen) * E) and router.dtype == np.float32
        for m, p in enumerate(seen):
            found[layer, p] = router[:, D + m * E : D + (m + 1) * E].astype(np.float64)
    return found


def seen_by(layer: int, blocks: dict[tuple[int, int], np.ndarray]) -> int:
    return sum(1 for target, _ in blocks if target == layer)


def test_model_and_keys(analysis: Analysis) -> None:
    assert analysis["model"] == {
        "folder": "hero", "step": 6, "layers": LAYERS, "experts": E, "top_k": K, "hidden_size": D,
        "stages": STAGES, "window": None, "scale": True, "history": "stage", "detach": True,
        "decoder_layer": list(range(LAYERS)),
    }  # fmt: skip
    assert list(analysis) == [
        "model", *WEIGHTS, "default_pair", "data",
        "expert_share", "utilisation", "history", "agreement", "history_alone", "removal", "paths",
    ]  # fmt: skip
    assert analysis["default_pair"] == {"layer": 3, "predecessor": 2}


def test_weights_against_numpy(
    analysis: Analysis, blocks: dict[tuple[int, int], np.ndarray], runs: Path
) -> None:
    centered = {
        place: block - block.mean(axis=0) - block.mean(axis=1, keepdims=True) + block.mean()
        for place, block in blocks.items()
    }
    assert [(pair["layer"], pair["predecessor"]) for pair in analysis["pairs"]] == list(blocks)
    for prefix, of in (("", blocks), ("centered_", centered)):
        dependency = np.zeros((LAYERS, LAYERS))
        for pair, ((layer, p), block) in zip(analysis["pairs"], of.items(), strict=True):
            factor = np.sqrt((layer - 1) / seen_by(layer, blocks))
            dependency[layer - 1, p - 1] = np.linalg.norm(block) * factor
            shares = np.linalg.svd(block, compute_uv=False)
            shares = np.maximum(shares / shares.sum(), 1e-300)
            assert pair["depth_factor"] == pytest.approx(factor, rel=1e-15)
            assert pair[f"{prefix}norm"] == pytest.approx(np.linalg.norm(block), rel=1e-12)
            rank = np.exp(-(shares * np.log(shares)).sum())
            assert pair[f"{prefix}effective_rank"] == pytest.approx(rank, rel=1e-9)
        np.testing.assert_allclose(analysis[f"{prefix}layer_dependency"], dependency, rtol=1e-12, atol=0)
        tau = np.percentile(np.abs(np.concatenate([block.ravel() for block in of.values()])), 90)
        assert analysis[f"{prefix}tau"] == pytest.approx(tau, rel=1e-12)
        for row, distance in zip(analysis[f"{prefix}coupling_by_distance"], (1, 2), strict=True):
            entries = np.concatenate([b.ravel() for (layer, p), b in of.items() if layer - p == distance])
            assert (row["distance"], row["entries"]) == (distance, entries.size)
            assert row["negative"] == pytest.approx(100 * (entries < -tau).mean(), rel=1e-15)
            assert row["positive"] == pytest.approx(100 * (entries > tau).mean(), rel=1e-15)
    bias = np.zeros((LAYERS, E))
    for (layer, _), block in blocks.items():
        bias[layer - 1] += block.mean(axis=1) - block.mean()
    np.testing.assert_allclose(analysis["expert_bias"], bias, rtol=0, atol=1e-15)

    tensors = load_file(runs / "analysis" / "analysis.safetensors")
    expected = {f"coupling.{layer}.{p}": block for (layer, p), block in blocks.items()}
    expected |= {f"centered.{layer}.{p}": block for (layer, p), block in centered.items()}
    expected |= {f"expert_bias.{layer}": bias[layer - 1] for layer in (2, 3, 5, 6)}
    assert set(tensors) == set(expected)
    for name, values in expected.items():
        assert tensors[name].dtype == np.float32
        np.testing.assert_allclose(tensors[name], values, rtol=1e-6, atol=1e-9)
        if name.startswith("coupling"):
            np.testing.assert_array_equal(tensors[name], values)


def valid_tokens(data: Path) -> np.ndarray:
    return np.fromfile(f"{data}-valid.bin", np.uint16).astype(np.int64)


def test_tokens_and_loss_match_hero_eval(analysis: Analysis, runs: Path, data: Path) -> None:
    for run, found in (("hero", analysis["data"]), ("baseline", analysis["utilisation"]["baseline"])):
        run_hero("eval", runs / run, "--data", data, "--batch", 4)
        want = json.loads((runs / run / "eval.json").read_text())["datasets"][0]
        assert found["loss"] == pytest.approx(want["loss"], rel=1e-6)
    assert analysis["data"] | {"loss": 0} == {
        "names": [f"{data.name}-valid"], "tokens": valid_tokens(data).size - 1, "sequence": SEQUENCE,
        "loss": 0,
    }  # fmt: skip


@pytest.mark.parametrize("run", ["hero", "baseline"])
def test_expert_shares_match_hero_logits(
    analysis: Analysis, runs: Path, data: Path, tmp_path: Path, run: str
) -> None:
    tokens = valid_tokens(data)[:-1]  # the last one has no target
    windows = [tokens[i : i + SEQUENCE].tolist() for i in range(0, tokens.size, SEQUENCE)]
    (tmp_path / "ids.json").write_text(json.dumps(windows))
    run_hero("logits", runs / run, "--tokens", tmp_path / "ids.json", "--out", tmp_path / "out", "--routing")
    routing = load_file(tmp_path / "out")
    share = np.zeros((LAYERS, E))
    for layer in range(1, LAYERS + 1):
        for n in range(len(windows)):
            share[layer - 1] += np.bincount(routing[f"topk_ids.{n}.{layer}"].ravel(), minlength=E)
    share /= tokens.size
    other = analysis["utilisation"]["baseline"] if run == "baseline" else analysis
    # Different batches round differently: a few tokens may be routed differently.
    np.testing.assert_allclose(other["expert_share"], share, rtol=0, atol=3 / tokens.size)
    peak = other["peak"] if run == "baseline" else other["utilisation"]["peak"]
    found = np.array(other["expert_share"])
    assert peak["share"] == found.max() == found[peak["layer"] - 1, peak["expert"]]
    if run == "hero":
        paths = analysis["paths"]
        assert paths["ids"] == windows[0] and len(paths["text"]) == SEQUENCE
        for layer in range(1, LAYERS + 1):
            assert np.mean(np.array(paths["experts"][layer - 1]) == routing[f"topk_ids.0.{layer}"]) > 0.95
            np.testing.assert_allclose(
                np.array(paths["weights"][layer - 1]), routing[f"topk_weights.0.{layer}"], atol=1e-4
            )
    else:
        change = 100 * (analysis["utilisation"]["peak"]["share"] / peak["share"] - 1)
        assert analysis["utilisation"]["peak_change_percent"] == pytest.approx(change, rel=1e-12)
        assert (other["folder"], other["top_k"]) == ("baseline", K)


def test_loss_without_a_predecessor(
    analysis: Analysis, blocks: dict[tuple[int, int], np.ndarray], runs: Path, data: Path, tmp_path: Path
) -> None:
    """A copy of the run with these columns zeroed, or replaced by their row means, has the same loss."""
    without = analysis["removal"]["loss_without"]
    assert [entry["predecessor"] for entry in without] == [1, 2, 4, 5]
    for prefix in ("", "centered_"):
        copy = tmp_path / f"{prefix}run"
        shutil.copytree(runs / "hero", copy)
        file = checkpoint(copy, 6) / "model.safetensors"
        weights = load_file(file)
        for layer in (2, 3):  # layer 1 is the first visible layer of both
            block = weights[f"model.layers.{layer - 1}.mlp.gate.weight"][:, D : D + E]
            block[:] = block.mean(axis=1, keepdims=True) if prefix else 0
        save_file(weights, file, {"format": "pt"})
        file.with_name("manifest.json").unlink()
        run_hero("eval", copy, "--data", data, "--batch", 4)
        want = json.loads((copy / "eval.json").read_text())["datasets"][0]["loss"]
        assert without[0][f"{prefix}loss"] == pytest.approx(want, rel=1e-6)
        for entry in without:
            assert entry[f"{prefix}loss_change"] == entry[f"{prefix}loss"] - analysis["data"]["loss"]
    seen = np.array([[(layer, p) in blocks for p in range(1, LAYERS + 1)] for layer in range(1, LAYERS + 1)])
    for prefix in ("", "centered_"):
        change = np.array(analysis["removal"][f"{prefix}routing_change"])
        assert (change[seen] > 0).all() and (change[~seen] == 0).all() and (change <= 1).all()
        assert (np.array(analysis["removal"][f"{prefix}routing_kl"])[seen] > 0).all()


def test_history_rows(analysis: Analysis) -> None:
    assert [row["visible"] for row in analysis["history"]] == [0, 1, 2, 0, 1, 2]
    for row in analysis["history"]:
        depth = (row["layer"] - 1) * E
        assert row["initial_variance_share"] == (depth / (D + depth) if row["visible"] else 0)
        assert (row["variance_share"] is None) == (row["visible"] == 0)
        assert row["variance_share"] is None or 0 < row["variance_share"] < 1
    for key in ("agreement", "history_alone"):
        assert [row["layer"] for row in analysis[key]] == [2, 3, 5, 6]
        assert all(0 <= row["top_k"] <= 1 and 0 <= row["top_1"] <= 1 for row in analysis[key])
    assert all(row["chance_top_k"] == K / E and row["kl"] > 0 for row in analysis["history_alone"])


def test_exported_folder_without_data(analysis: Analysis, runs: Path, tmp_path: Path) -> None:
    """Writes only weight results; replaces files of an earlier analysis and keeps others."""
    run_hero("export", runs / "hero", tmp_path / "model")
    out = tmp_path / "out"
    out.mkdir()
    (out / "analysis.json").write_text("old")
    (out / "notes.txt").write_text("mine")
    run_hero("analyze", tmp_path / "model", "--out", out, "--pair", "6,4", "--numbers-only")
    assert sorted(p.name for p in out.iterdir()) == ["analysis.json", "analysis.safetensors", "notes.txt"]
    found = json.loads((out / "analysis.json").read_text())
    for key in WEIGHTS:
        assert found[key] == analysis[key]
    assert (found["model"]["folder"], found["model"]["step"]) == ("model", None)
    assert found["default_pair"] == {"layer": 6, "predecessor": 4}
    assert set(found) == {"model", *WEIGHTS, "default_pair"}
    name = "analysis.safetensors"
    assert (out / name).read_bytes() == (runs / "analysis" / name).read_bytes()


def test_benchmark_files(analysis: Analysis, runs: Path, data: Path, tmp_path: Path) -> None:
    """Several datasets, including text, share the token limit."""
    rows = [{"query": f"return {i} +", "choices": ["index", "total"], "gold": i % 2} for i in range(60)]
    file = tmp_path / "choices.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_hero("analyze", runs / "hero", "--out", tmp_path / "out", "--data", file, data, "--tokens", 6 * SEQUENCE,
        "--numbers-only")  # fmt: skip
    found = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert found["data"]["names"] == ["choices", f"{data.name}-valid"]
    assert found["data"]["tokens"] == 6 * SEQUENCE
    assert "".join(found["paths"]["text"]).startswith("return 0 + index</s>return 1 + total</s>")


def test_passes_paths_to_python(runs: Path, tmp_path: Path) -> None:
    words = ["analyze", runs / "hero", "--out", tmp_path / "out", "--runs", runs / "baseline", runs / "hero"]
    result = subprocess.run(
        [PROGRAM, *map(str, words)],
        env=ENVIRONMENT | {"HERO_PYTHON": "/bin/echo"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == f"-m hero_moe.analysis {tmp_path}/out --runs {runs}/baseline {runs}/hero\n"
    assert (tmp_path / "out" / "analysis.json").is_file()


def test_single_layer_has_no_history(data: Path, tmp_path: Path) -> None:
    settings = HERO | {"model.num_hidden_layers": 1, "router.stages": 1, "train.steps": 2}
    run_hero(*training(tmp_path / "run", data, settings))
    run_hero("analyze", tmp_path / "run", "--out", tmp_path / "out", "--data", data, "--tokens", 128,
        "--numbers-only")  # fmt: skip
    found = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert found["layer_dependency"] == [[0]] and found["tau"] is None and found["default_pair"] is None
    assert found["pairs"] == found["coupling_by_distance"] == []
    assert found["agreement"] == found["history_alone"] == []
    assert found["centered_layer_dependency"] == [[0]] and found["centered_tau"] is None
    assert found["expert_bias"] == [[0] * E]
    assert found["removal"] == {
        "routing_change": [[0]], "routing_kl": [[0]], "centered_routing_change": [[0]],
        "centered_routing_kl": [[0]], "loss_without": [], "rank_correlation": None,
        "centered_rank_correlation": None,
    }  # fmt: skip
    assert load_file(tmp_path / "out" / "analysis.safetensors") == {}


def test_single_expert_has_no_variance(data: Path, tmp_path: Path) -> None:
    """Its logits do not vary over experts: the share is null, and the page can be drawn."""
    settings = HERO | {"model.num_experts": 1, "model.num_experts_per_tok": 1, "train.steps": 2}
    run_hero(*training(tmp_path / "run", data, settings))
    run_hero("analyze", tmp_path / "run", "--out", tmp_path / "out", "--data", data, "--tokens", 128)
    found = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert [layer["variance_share"] for layer in found["history"]] == [None] * 3
    assert "The logits of all experts are equal" in (tmp_path / "out" / "report.html").read_text()


Arrange = Callable[[Path, Path, Path], list[Any]]


def bad_line(runs: Path, data: Path, tmp: Path) -> list[Any]:
    (tmp / "bad.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    return [runs / "hero", "--data", tmp / "bad.jsonl"]


def bad_row(runs: Path, data: Path, tmp: Path) -> list[Any]:
    (tmp / "rows.jsonl").write_text('{"query": "1 + 1", "choices": ["2"], "gold": 1}\n')
    return [runs / "hero", "--data", tmp / "rows.jsonl"]


def no_tokenizer(runs: Path, data: Path, tmp: Path) -> list[Any]:
    run_hero("export", runs / "hero", tmp / "model")
    for file in (tmp / "model").glob("tokenizer*"):
        file.unlink()
    (tmp / "text.jsonl").write_text('{"text": "some"}\n')
    return [tmp / "model", "--data", tmp / "text.jsonl"]


def foreign_ids(runs: Path, data: Path, tmp: Path) -> list[Any]:
    write_megatron(tmp / "foreign", [[1, 2, 60000]])
    return [runs / "hero", "--data", tmp / "foreign"]


def foreign_tokenizer(runs: Path, data: Path, tmp: Path) -> list[Any]:
    (tmp / "text.txt").write_text("other words in another order " * 50)
    run_hero("data", "tokenizer", "--input", tmp / "text.txt", "--vocab-size", 300, "--out", tmp / "o.model",
        "--workers", 1)  # fmt: skip
    run_hero("data", "tokenize", "--input", tmp / "text.txt", "--tokenizer", tmp / "o.model", "--out", tmp / "other",
        "--workers", 1)  # fmt: skip
    return [runs / "hero", "--data", tmp / "other-train"]


def file_as_out(runs: Path, data: Path, tmp: Path) -> list[Any]:
    (tmp / "out").write_text("mine")
    return [runs / "hero"]


def foreign_baseline(runs: Path, data: Path, tmp: Path) -> list[Any]:
    settings = SETTINGS | {"model.vocab_size": 640, "train.steps": 2}
    run_hero(*training(tmp / "wide", data, settings))
    return [runs / "hero", "--data", data, "--baseline", tmp / "wide"]


def test_a_folder_below_a_file(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    result = hero("analyze", runs / "hero", "--out", tmp_path / "file" / "a" / "b", "--numbers-only")
    assert_exit_2(result, "b: found a file at ", f"{tmp_path}/file, expected a new folder")


REJECTED: dict[str, tuple[Arrange, list[str]]] = {
    "baseline": (lambda runs, *_: [runs / "baseline"], ['router.kind = "baseline"', "expected a HERO model"]),
    "no folder": (lambda runs, *_: [runs / "none"], ["none: no such folder, expected a run folder"]),
    "no data": (lambda runs, *_: [runs / "hero", "--data", runs / "none"], ["none.idx"]),
    "line": (bad_line, ["bad.jsonl:2: byte 9: found invalid JSON"]),
    "row": (bad_row, ["rows.jsonl:1: gold: found 1, expected the index of the correct choice, 0 to 0"]),
    "no tokenizer": (no_tokenizer, ["text.jsonl: text, but", "has no tokenizer.model"]),
    "ids": (foreign_ids, ["foreign.bin", "60000"]),
    "tokenizer": (foreign_tokenizer, ["other-train.bin", "different tokenizer than", "tokenizer.model"]),
    "out": (file_as_out, ["out: found a file at ", "expected a new folder"]),
    "baseline's vocabulary": (foreign_baseline, ["wide", "model.vocab_size = 640, expected 512", "hero"]),
    "baseline without data": (
        lambda runs, *_: [runs / "hero", "--baseline", runs / "hero"],
        ["--baseline requires"],
    ),
    "tokens without data": (lambda runs, *_: [runs / "hero", "--tokens", 64], ["--tokens requires"]),
    "batch without data": (lambda runs, *_: [runs / "hero", "--batch", 2], ["--batch requires"]),
    "pair": (lambda runs, *_: [runs / "hero", "--pair", "4,3"], ["--pair 4,3: expected a layer, from 1"]),
    "long windows": (
        lambda runs, data, _: [runs / "hero", "--data", data, "--sequence", 129],
        ["--sequence: found 129, expected at most 128"],
    ),
    "runs": (lambda runs, data, tmp: [runs / "hero", "--runs", tmp], ["found no metrics.jsonl"]),
}  # fmt: skip


@pytest.mark.parametrize("case", REJECTED)
def test_rejected_input_writes_nothing(case: str, runs: Path, data: Path, tmp_path: Path) -> None:
    arrange, parts = REJECTED[case]
    words = arrange(runs, data, tmp_path)
    flag = [] if case == "runs" else ["--numbers-only"]
    before = folder_bytes(tmp_path)
    assert_exit_2(hero("analyze", *words, "--out", tmp_path / "out", *flag), *parts)
    assert folder_bytes(tmp_path) == before and (case == "out") == (tmp_path / "out").exists()
