"""Upcycling: adds history to the routers of a trained baseline; training continues from exactly its model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from program import (
    CONFIGS,
    DEEPSEEK,
    assert_exit_2,
    assert_resumes_alike,
    assert_same_outcome,
    checkpoint,
    hero,
    metrics,
    run_hero,
    tensor_bytes,
    training,
)

QWEN: dict[str, Any] = {}
FAMILIES = {
    "qwen3": QWEN,
    "deepseek": DEEPSEEK,
    "olmoe": {"model.model_type": "olmoe", "model.norm_topk_prob": False},
    "mixtral": {"model.model_type": "mixtral"},
}
LAYERS = {"model.num_hidden_layers": 4, "train.steps": 4, "train.dtype": "fp32"}
WIDTH = 64  # SMALL's hidden size: the first history column of a router weight
ZERO = ["--router.kind=hero", "--router.init=zero"]
Starts = Callable[[str], Path]


@pytest.fixture(scope="module")
def starts(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Starts:
    """A baseline of each family after four steps with a high learning rate."""

    @cache
    def trained(family: str) -> Path:
        run = tmp_path_factory.mktemp(family) / "run"
        run_hero(*training(run, data, LAYERS | FAMILIES[family] | {"optim.lr": 3e-3}))
        return run

    return trained


@pytest.fixture(scope="module")
def baselines(data: Path, starts: Starts, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Two more steps of a family's baseline, in a given dtype."""

    @cache
    def continued(family: str, **types: str) -> Path:
        run = tmp_path_factory.mktemp("baseline") / "run"
        settings = LAYERS | FAMILIES[family] | {"train.steps": 2} | types
        run_hero(*training(run, data, settings, "--init-from", starts(family)))
        return run

    return continued


def tensors(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "model.safetensors")


def routers(folder: Path) -> dict[str, np.ndarray]:
    return {name: t for name, t in tensors(folder).items() if name.endswith(".gate.weight")}


CASES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "qwen3-fp32": ("qwen3", {}, []),
    "qwen3-bf16": ("qwen3", {"train.dtype": "bf16"}, []),
    "deepseek-fp32": ("deepseek", {}, []),
    "deepseek-bf16": ("deepseek", {"train.dtype": "bf16", "router.dtype": "fp32"}, []),
    "olmoe": ("olmoe", {}, []),
    "mixtral": ("mixtral", {}, []),
    "window": ("qwen3", {}, ["--router.window=1"]),
    "two-stages": ("deepseek", {}, ["--router.stages=2"]),
    "global": ("qwen3", {}, ["--router.stages=2", "--router.history=global", "--router.scale=false"]),
    "gradient": ("qwen3", {}, ["--router.detach=false"]),
    "recompute": ("deepseek", {"train.recompute": True}, []),
}
# Number of visible layers of each router.
VISIBLE = {"window": [0, 1, 1, 1], "two-stages": [0, 1, 0]}


@pytest.mark.parametrize("case", CASES)
def test_first_step_matches_the_baseline(
    data: Path, tmp_path: Path, starts: Starts, baselines: Callable[..., Path], case: str
) -> None:
    family, settings, flags = CASES[case]
    types = {key: value for key, value in settings.items() if key.endswith(".dtype")}
    words = ["--init-from", starts(family), *ZERO, *flags]
    run_hero(*training(tmp_path / "hero", data, LAYERS | FAMILIES[family] | settings, *words))
    baseline, lines = metrics(baselines(family, **types)), metrics(tmp_path / "hero")
    # Bitwise, except that a history with gradient has router operators of its own, with fp32 rounding errors.
    rounding = 1e-6 if "--router.detach=false" in flags else 0
    for key in ("loss", "lm_loss", "aux_losses", "max_expert_share"):
        assert lines[0][key] == pytest.approx(baseline[0][key], rel=rounding, abs=0), key
    # The weights are the trained ones, and the history affects later steps.
    assert lines[0]["lm_loss"] < metrics(starts(family))[0]["lm_loss"] - 0.1
    # In bf16 the cross-entropy may still round to the baseline's; the balance loss reads the routers' fp32
    # scores.
    assert lines[1]["loss"] != baseline[1]["loss"]
    assert len({line["lm_loss"] for line in lines}) == 4

    gates = routers(checkpoint(tmp_path / "hero", 4))
    start = routers(checkpoint(starts(family), 4))
    visible = VISIBLE.get(case, range(len(gates)))
    assert gates.keys() == start.keys()
    for (name, gate), layers in zip(gates.items(), visible, strict=True):
        assert gate.shape == (8, WIDTH + 8 * layers), name
        assert np.count_nonzero(gate[:, WIDTH:]) == gate[:, WIDTH:].size, name
        assert not np.array_equal(gate[:, :WIDTH], start[name]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_uniform_history_changes_the_model(
    data: Path, tmp_path: Path, starts: Starts, baselines: Callable[..., Path], family: str
) -> None:
    settings = LAYERS | FAMILIES[family] | {"train.steps": 2}
    run_hero(*training(tmp_path / "run", data, settings, "--init-from", starts(family), "--router.kind=hero"))
    first, baseline = metrics(tmp_path / "run")[0], metrics(baselines(family))[0]
    assert first["lm_loss"] != baseline["lm_loss"]
    # The first router sees no history.
    assert first["layers"]["entropy"][0] == baseline["layers"]["entropy"][0]
    assert first["layers"]["entropy"][2] != baseline["layers"]["entropy"][2]


@pytest.mark.parametrize("family", FAMILIES)
def test_only_routers_learn(data: Path, tmp_path: Path, starts: Starts, family: str) -> None:
    settings = LAYERS | FAMILIES[family] | {"train.trainable": "routers", "router.bias_update_rate": 0.0}
    words = ["--init-from", starts(family), *ZERO]
    run_hero(*training(tmp_path / "run", data, settings, *words))
    before, after = tensors(checkpoint(starts(family), 4)), tensors(checkpoint(tmp_path / "run", 4))
    assert before.keys() == after.keys()
    gates = routers(checkpoint(tmp_path / "run", 4))
    assert len(gates) == (3 if family == "deepseek" else 4)
    for name, tensor in after.items():
        if name in gates:
            assert (tensor[:, :WIDTH] != before[name]).mean() > 0.9, name
            assert np.count_nonzero(tensor[:, WIDTH:]) == tensor[:, WIDTH:].size, name
        else:
            assert tensor.tobytes() == before[name].tobytes(), name
    assert len({line["lm_loss"] for line in metrics(tmp_path / "run")}) == 4

    if family == "deepseek":
        run_hero(*training(tmp_path / "again", data, settings | {"train.recompute": True}, *words))
        assert tensor_bytes(tmp_path / "again", 4) == tensor_bytes(tmp_path / "run", 4)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("qwen3", {"train.trainable": "routers"}),
        ("deepseek", {"train.recompute": True}),
    ],
)
def test_resume(data: Path, tmp_path: Path, starts: Starts, family: str, settings: dict[str, Any]) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    settings = LAYERS | FAMILIES[family] | settings | {"checkpoint.every": 2}
    run_hero(*training(whole, data, settings, "--init-from", starts(family), *ZERO))
    assert_resumes_alike(whole, halves, 4)


def test_resume_before_the_first_checkpoint(data: Path, tmp_path: Path, starts: Starts) -> None:
    """The run stores the source of its weights, although the resume command omits it."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run_hero(*training(whole, data, LAYERS, "--init-from", starts("qwen3"), *ZERO))
    shutil.copytree(whole, cut)
    shutil.rmtree(cut / "checkpoints")
    run_hero("train", "--run", cut, "--data", data, "--resume")
    assert_same_outcome(cut, whole, 4)


def test_new_run_ignores_init_from_of_an_older_run(data: Path, tmp_path: Path, starts: Starts) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "init-from").write_text(str(starts("qwen3")))  # of a run that ended before its first step
    run_hero(*training(run, data, LAYERS))
    assert not (run / "init-from").exists()
    assert metrics(run)[0]["lm_loss"] > metrics(starts("qwen3"))[-1]["lm_loss"] + 0.1


def test_exported_folder_matches_the_run(data: Path, tmp_path: Path, starts: Starts) -> None:
    """Also if the configuration sets keys that the family ignores: num_key_value_heads, head_dim."""
    settings = LAYERS | DEEPSEEK | {"train.steps": 2}
    run_hero("export", starts("deepseek"), tmp_path / "folder")
    run_hero(*training(tmp_path / "a", data, settings, "--init-from", starts("deepseek"), *ZERO))
    run_hero(*training(tmp_path / "b", data, settings, "--init-from", tmp_path / "folder", *ZERO))
    assert_same_outcome(tmp_path / "a", tmp_path / "b", 2)
    assert (tmp_path / "a" / "config.toml").read_text() == (tmp_path / "b" / "config.toml").read_text()


@pytest.fixture(scope="module")
def windowed(data: Path, starts: Starts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A HERO run with window 1 over two unequal stages, initialized from the baseline."""
    run = tmp_path_factory.mktemp("windowed") / "run"
    flags = ["--router.window=1", "--router.stages=2", "--router.stage_sizes=3,1"]
    run_hero(*training(run, data, LAYERS, "--init-from", starts("qwen3"), *ZERO, *flags))
    return run


def test_init_from_keeps_the_history(data: Path, tmp_path: Path, windowed: Path) -> None:
    """A folder with history keeps its structure and weights."""
    settings = LAYERS | {"train.steps": 1, "optim.warmup_steps": 0, "optim.lr": 1e-4}
    run_hero("export", windowed, tmp_path / "folder")
    for name, source in {"a": windowed, "b": tmp_path / "folder"}.items():
        run_hero(*training(tmp_path / name, data, settings, "--init-from", source, *ZERO))
    assert_same_outcome(tmp_path / "a", tmp_path / "b", 1)
    gates, before = routers(checkpoint(tmp_path / "a", 1)), routers(checkpoint(windowed, 4))
    assert [gate.shape[1] - WIDTH for gate in gates.values()] == [0, 8, 8, 0]
    for name, gate in gates.items():
        np.testing.assert_allclose(
            gate, before[name], rtol=0, atol=1.1e-4
        )  # one step with a learning rate of 1e-4
    config = (tmp_path / "b" / "config.toml").read_text()
    assert "\nwindow = 1\n" in config and "\nstage_sizes = [3, 1]\n" in config


@pytest.mark.parametrize(
    ("flag", "parts"),
    [
        ("--router.kind=baseline", ['router.kind: "hero" -> "baseline"']),
        ("--router.window=2", ["router.window: 1 -> 2"]),
        ("--router.window=0", ["router.window: 1 -> 0"]),
        ("--router.scale=false", ["router.scale: true -> false"]),
        ("--router.history=global", ['router.history: "stage" -> "global"']),
        ("--router.stage_sizes=1,3", ["router.stage_sizes: [3, 1] -> [1, 3]"]),
        ("--model.rms_norm_eps=1e-5", ["model.rms_norm_eps: 1e-06 -> 1e-05"]),
    ],
)
def test_rejects_different_router(
    data: Path, tmp_path: Path, windowed: Path, flag: str, parts: list[str]
) -> None:
    result = hero(*training(tmp_path / "run", data, LAYERS, "--init-from", windowed, flag))
    assert_exit_2(result, str(windowed), ": its weights belong to another model (", *parts)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ("small-deepseek.toml", ["model.model_type: ", '"qwen3_moe" -> "deepseek_v3"']),
        ("small-qwen3.toml", ["model.vocab_size: 512 -> 8192"]),
        ("demo.toml", ["model.hidden_size: 64 -> 256"]),
    ],
)
def test_rejects_different_model(
    data: Path, tmp_path: Path, starts: Starts, config: str, parts: list[str]
) -> None:
    words = ["--config", CONFIGS / config, "--data", data, "--init-from", starts("qwen3")]
    result = hero("train", *words, "--run", tmp_path / "run")
    assert_exit_2(result, str(starts("qwen3")), ": its weights belong to another model (", *parts)
    assert not (tmp_path / "run").exists()
