"""Validation during training: it changes nothing else, agrees with `hero eval` in every layout, and survives
resumes."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from program import (
    DEEPSEEK,
    HERO,
    assert_exit_2,
    assert_same_outcome,
    checkpoint,
    checkpoint_names,
    deterministic_metrics,
    folder_bytes,
    hero,
    metrics,
    run_hero,
    start_hero,
    tensor_bytes,
    training,
    write_megatron,
)
from ranks import run_ranks_checked, start

VALID = HERO | {"eval.every": 2, "eval.batches": 3}
KEYS = ("valid_loss", "valid")


def without_validation(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in KEYS} for line in deterministic_metrics(run)]


def valid_losses(run: Path) -> dict[int, float]:
    return {line["step"]: line["valid_loss"] for line in metrics(run) if "valid_loss" in line}


def evaluated(run: Path, *data: Any, batch: int = 2) -> dict[str, float]:
    """Losses by `hero eval` of the newest checkpoint, by the name that it gives to a data set."""
    run_hero("eval", run, "--data", *data, "--batch", batch)
    return {entry["name"]: entry["loss"] for entry in json.loads((run / "eval.json").read_text())["datasets"]}


VARIANTS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "moving bias": DEEPSEEK,
    "jitter, capacity": {"router.jitter": 0.1, "router.capacity_factor": 1.0},
    "forced balance, R_cp": {"router.force_balance": True, "router.coupling_loss": 1e-2},
    "global balance, recompute": {"router.balance": "global", "train.recompute": True},
    "norms": {"train.norms_every": 2},
    "rmoe": {"router.kind": "rmoe"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_is_the_same_without_validation(variant: str, data: Path, tmp_path: Path) -> None:
    runs = []
    for name, more in (("with", {}), ("without", {"eval.every": 0, "eval.batches": 0})):
        runs.append(tmp_path / name)
        run_hero(*training(runs[-1], data, VALID | VARIANTS[variant] | more))
    assert tensor_bytes(runs[0], 6) == tensor_bytes(runs[1], 6)
    assert without_validation(runs[0]) == without_validation(runs[1])
    assert list(valid_losses(runs[0])) == [2, 4, 6] and valid_losses(runs[1]) == {}


LAYOUT_MODEL = HERO | {
    "router.stages": 2,
    "router.coupling_loss": 1e-2,
    "router.eval_capacity_factor": 1.25,
    "model.num_hidden_layers": 4,
    "train.sequence": 32,
    "train.micro_batch": 1,
    "train.global_batch": 4,
    "train.steps": 3,
    "train.dtype": "fp64",
    "optim.warmup_steps": 1,
    "parallel.timeout": 60,
    "eval.every": 2,
}
# With an expert bias, which is updated after every step.
LAYOUT_DEEPSEEK = LAYOUT_MODEL | DEEPSEEK | {"model.num_hidden_layers": 5, "router.history": "global"}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "data 2": (2, {}),
    "data 4": (4, {}),
    "expert 2": (2, {"parallel.expert": 2}),
    "expert 4": (4, {"parallel.expert": 4}),
    "pipeline 2": (2, {"parallel.pipeline": 2}),
    "pipeline 4": (4, {"parallel.pipeline": 4}),
    "zero bubble": (2, {"parallel.pipeline": 2, "parallel.schedule": "zero_bubble"}),
    "interleaved": (
        2,
        {"parallel.pipeline": 2, "parallel.schedule": "interleaved", "parallel.chunks": 2},
    ),
    "pipeline 2, expert 2": (4, {"parallel.pipeline": 2, "parallel.expert": 2}),
}


@pytest.fixture(scope="module")
def sets(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two data sets: the held-out half, and one of five windows of 32 tokens that leaves ranks without work."""
    tokens = np.fromfile(data.with_name("corpus-train.bin"), "<u2")[:140]
    prefix = tmp_path_factory.mktemp("sets") / "short"
    write_megatron(prefix, [tokens.tolist()])
    return [f"held-out={data}", str(prefix)]


@pytest.fixture(scope="module")
def alone(data: Path, sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The runs of one process by model."""
    runs = {}
    for name, model in (("stages", LAYOUT_MODEL), ("deepseek", LAYOUT_DEEPSEEK)):
        runs[name] = tmp_path_factory.mktemp("alone") / name
        run_hero(*training(runs[name], data, model | {"eval.data": sets}))
    return runs


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", ["stages", "deepseek"])
def test_layouts(
    model: str, layout: str, alone: dict[str, Path], data: Path, sets: list[str], tmp_path: Path
) -> None:
    ranks, settings = LAYOUTS[layout]
    common = LAYOUT_MODEL if model == "stages" else LAYOUT_DEEPSEEK
    run = tmp_path / "run"
    run_ranks_checked(
        training(run, data, common | settings | {"eval.data": sets}), ranks, run.with_suffix(".log")
    )
    found = [line for line in metrics(run) if "valid" in line]
    expected = [line for line in metrics(alone[model]) if "valid" in line]
    assert [line["step"] for line in found] == [line["step"] for line in expected] == [2, 3]
    for mine, theirs in zip(found, expected):
        assert list(mine["valid"]) == ["held-out", "short"]
        assert mine["valid"] == pytest.approx(theirs["valid"], rel=1e-9, abs=0)
        assert mine["valid_loss"] == pytest.approx(theirs["valid_loss"], rel=1e-9, abs=0)


@pytest.mark.parametrize("layout", ["data 2", "expert 2", "interleaved", "zero bubble"])
def test_training_of_several_ranks_is_the_same(
    layout: str, data: Path, sets: list[str], tmp_path: Path
) -> None:
    ranks, settings = LAYOUTS[layout]
    runs = []
    for name, every in (("with", 1), ("without", 0)):
        runs.append(tmp_path / name)
        more = {"train.dtype": "bf16", "eval.every": every, "eval.data": sets if every else []}
        words = training(runs[-1], data, LAYOUT_MODEL | settings | more)
        run_ranks_checked(words, ranks, runs[-1].with_suffix(".log"))
    tensors = [{p.name: p.read_bytes() for p in checkpoint(run, 3).glob("*.safetensors")} for run in runs]
    assert len(tensors[0]) >= 2 and tensors[0] == tensors[1]
    assert [line["loss"] for line in metrics(runs[0])] == [line["loss"] for line in metrics(runs[1])]


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_equals_hero_eval(dtype: str, data: Path, tmp_path: Path) -> None:
    """With options that apply only to training."""
    run = tmp_path / "run"
    names = [f"trained={data}-train", f"{data}"]
    run_hero(*training(run, data, HERO | {
        "train.dtype": dtype, "eval.every": 4, "eval.data": names, "router.capacity_factor": 0.5,
        "router.force_balance": True, "router.jitter": 0.2, "train.steps": 5,
    }))  # fmt: skip
    last = metrics(run)[-1]
    losses = evaluated(run, f"{data}-train", f"{data}-valid")
    assert last["valid"] == {"trained": losses["corpus-train"], "corpus": losses["corpus-valid"]}
    entries = json.loads((run / "eval.json").read_text())["datasets"]
    mean = sum(e["loss"] * e["tokens"] for e in entries) / sum(e["tokens"] for e in entries)
    assert last["valid_loss"] == pytest.approx(mean, rel=1e-12)
    assert list(valid_losses(run)) == [4, 5]


def test_capacity_of_evaluation(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_hero(*training(run, data, HERO | {"eval.every": 6, "router.eval_capacity_factor": 0.5}))
    # Capacity applies to a forward pass: of train.micro_batch windows, or --batch.
    assert metrics(run)[-1]["valid_loss"] == evaluated(run, data)["corpus-valid"]
    assert metrics(run)[-1]["valid_loss"] != evaluated(run, data, batch=5)["corpus-valid"]


def test_the_whole_history_crosses_pipeline_boundaries(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = {"parallel.pipeline": 2, "parallel.history_top": 2, "train.dtype": "fp32", "eval.every": 6}
    words = training(run, data, HERO | {"router.history": "global"} | settings)
    run_ranks_checked(words, 2, run.with_suffix(".log"))
    assert metrics(run)[-1]["valid_loss"] == pytest.approx(evaluated(run, data)["corpus-valid"], rel=1e-6)


def test_number_of_batches(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = HERO | {"eval.every": 6, "eval.batches": 2, "train.micro_batch": 2, "train.global_batch": 4}
    run_hero(*training(run, data, settings))
    tokens = np.fromfile(data.with_name("corpus-valid.bin"), "<u2")[: 8 * 64 + 1]
    write_megatron(tmp_path / "first", [tokens.tolist()])
    assert metrics(run)[-1]["valid"] == {"corpus": evaluated(run, tmp_path / "first")["first"]}


def test_tensorboard_and_progress(data: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    result = run_hero(*training(run, data, VALID | {"eval.data": [f"a={data}", f"b={data}-train"]}))
    board = EventAccumulator(str(run / "tb"))
    board.Reload()
    for tag, key in (("loss/valid", None), ("valid/a", "a"), ("valid/b", "b")):
        lines = [line for line in metrics(run) if "valid" in line]
        assert [e.step for e in board.Scalars(tag)] == [2, 4, 6]
        expected = [line["valid"][key] if key else line["valid_loss"] for line in lines]
        assert [e.value for e in board.Scalars(tag)] == pytest.approx(expected, rel=1e-6)
    assert f"valid {metrics(run)[-1]['valid_loss']:.4f}" in result.stderr.splitlines()[-1]


def test_resume(data: Path, tmp_path: Path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    run_hero(*training(whole, data, VALID | {"checkpoint.every": 2, "checkpoint.keep_best": True}))
    shutil.copytree(whole, halves)
    shutil.rmtree(checkpoint(halves, 6))
    run_hero("train", "--run", halves, "--resume")
    assert_same_outcome(halves, whole, 6)
    assert folder_bytes(checkpoint(halves, 6)) == folder_bytes(checkpoint(whole, 6))
    assert (halves / "best.json").read_bytes() == (whole / "best.json").read_bytes()


LONG_VALIDATION = HERO | {
    "eval.every": 2,
    "train.steps": 4,
    "checkpoint.every": 2,
    "checkpoint.keep_best": True,
}


def wait_for_validation(run: Path) -> None:
    """Waits until step 1 is logged and step 2, which takes milliseconds, is being validated."""
    limit = time.monotonic() + 60
    while not (run / "metrics.jsonl").exists() or not metrics(run):
        assert time.monotonic() < limit
        time.sleep(0.01)
    time.sleep(0.3)


@pytest.mark.parametrize("ranks", [1, 2])
def test_stopped_validation_is_repeated(ranks: int, data: Path, tmp_path: Path) -> None:
    settings = LONG_VALIDATION | {
        "train.micro_batch": 1,
        "eval.data": [f"{name}={data}-train" for name in "abcdefgh"],
    }
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    if ranks == 1:
        run_hero(*training(whole, data, settings))
        processes: list[subprocess.Popen[Any]] = [start_hero(*training(stopped, data, settings))]
    else:
        run_ranks_checked(training(whole, data, settings), ranks, whole.with_suffix(".log"))
        processes = start(training(stopped, data, settings), ranks, stopped.with_suffix(".log"))
    wait_for_validation(stopped)
    processes[-1].send_signal(signal.SIGINT)
    assert [p.wait(60) for p in processes] == [130] * ranks
    assert [line["step"] for line in metrics(stopped)] == [1, 2]
    assert valid_losses(stopped) == {}
    assert json.loads((checkpoint(stopped, 2) / "state.json").read_text())["validation"]["interrupted"]
    words = ["train", "--run", stopped, "--resume"]
    if ranks == 1:
        run_hero(*words)
    else:
        run_ranks_checked(words, ranks, stopped.with_suffix(".log"))
    assert deterministic(stopped) == deterministic(whole)
    for step in (2, 4):
        assert folder_bytes(checkpoint(stopped, step)) == folder_bytes(checkpoint(whole, step))
    assert (stopped / "best.json").read_bytes() == (whole / "best.json").read_bytes()


def deterministic(run: Path) -> list[dict[str, Any]]:
    """Metrics without times; of `ranks`, only the deterministic ones are compared elsewhere."""
    return [{k: v for k, v in line.items() if k != "ranks"} for line in deterministic_metrics(run)]


def test_stopped_validation_of_the_last_step(data: Path, tmp_path: Path) -> None:
    settings = LONG_VALIDATION | {
        "train.steps": 2, "train.micro_batch": 1,
        "eval.data": [f"{name}={data}-train" for name in "abcdefgh"],
    }  # fmt: skip
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run_hero(*training(whole, data, settings))
    process = start_hero(*training(stopped, data, settings))
    wait_for_validation(stopped)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert valid_losses(stopped) == {}
    run_hero("train", "--run", stopped, "--resume")
    assert_same_outcome(stopped, whole, 2)
    assert folder_bytes(checkpoint(stopped, 2)) == folder_bytes(checkpoint(whole, 2))
    assert "nothing to do" in run_hero("train", "--run", stopped, "--resume").stderr


def test_keep_best(data: Path, tmp_path: Path) -> None:
    """The learning rate of the second part is too large: the best checkpoint is the last one of the first."""
    run = tmp_path / "run"
    settings = VALID | {"checkpoint.every": 2, "checkpoint.keep": 1, "checkpoint.keep_best": True}
    result = run_hero(*training(run, data, settings))
    losses = valid_losses(run)
    assert min(losses, key=losses.__getitem__) == 6
    best = {"step": 6, "valid_loss": losses[6], "checkpoint": "checkpoints/step-00000006"}
    assert json.loads((run / "best.json").read_text()) == best
    assert f"lowest validation loss {losses[6]:.4f} after step 6: {checkpoint(run, 6)}" in result.stderr
    result = run_hero(
        "train", "--run", run, "--resume", "--train.steps=14", "--optim.decay_steps=14", "--optim.lr=3"
    )
    losses = valid_losses(run)
    assert list(losses) == [2, 4, 6, 8, 10, 12, 14]
    assert min(losses, key=losses.__getitem__) == 6
    assert json.loads((run / "best.json").read_text()) == best
    # The newest verified one, the last one, and the best.
    assert checkpoint_names(run) == ["step-00000006", "step-00000012", "step-00000014"]
    assert str(checkpoint(run, 6)) in result.stderr.splitlines()[-1]
    # Without the option, it is deleted like any other.
    run_hero("train", "--run", run, "--resume", "--train.steps=16", "--checkpoint.keep_best=false")
    assert checkpoint_names(run) == ["step-00000014", "step-00000016"]
    assert not (run / "best.json").exists()


def test_best_of_other_validation_data_does_not_count(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_hero(*training(run, data, VALID | {"checkpoint.every": 2, "checkpoint.keep_best": True}))
    words = ("--train.steps=8", "--optim.decay_steps=8", "--optim.lr=0.3", f"--eval.data=train={data}-train")
    run_hero("train", "--run", run, "--resume", *words)
    assert json.loads((run / "best.json").read_text())["step"] == 8
    assert metrics(run)[-1]["valid"].keys() == {"train"}


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"eval.data": ["missing"]}, ("eval.data: missing.idx", )),
        ({"eval.data": ["=x"]}, ('eval.data: found "=x", expected PREFIX or NAME=PREFIX', )),
        ({"eval.data": ["a={data}", "a={data}-train"]}, ('eval.data: found two data sets named "a"', )),
        ({"eval.data": ["{data}", "corpus={data}-train"]}, ('eval.data: found two data sets named "corpus"', )),
        ({"eval.data": ["{short}"]}, ("eval.data: ", "short.bin: 1 tokens, expected at least 2")),
        ({"eval.data": ["{other}"]}, ("eval.data: ", "other-valid.bin", "different tokenizer than")),
        ({"eval.every": 0, "checkpoint.keep_best": True}, ("checkpoint.keep_best", "eval.every = 0")),
        (
            {"checkpoint.every": 3, "checkpoint.keep_best": True},
            ("checkpoint.every: found 3, expected a multiple of eval.every = 2", ),
        ),
    ],
)  # fmt: skip
def test_errors(
    settings: dict[str, Any], parts: tuple[str, ...], data: Path, corpus: Path, tmp_path: Path
) -> None:
    write_megatron(tmp_path / "short", [[1]])
    if "{other}" in settings.get("eval.data", ()):
        model = tmp_path / "other.model"
        run_hero("data", "tokenizer", "--input", corpus, "--vocab-size", 480, "--out", model, "--workers", 1)
        run_hero("data", "tokenize", "--input", corpus, "--tokenizer", model, "--out", tmp_path / "other",
            "--valid-fraction", 0.1, "--workers", 1)  # fmt: skip
    names = {"data": data, "short": tmp_path / "short", "other": tmp_path / "other"}
    filled = [entry.format(**names) for entry in settings.get("eval.data", [])]
    run = tmp_path / "run"
    result = hero(*training(run, data, VALID | {"eval.batches": 0} | settings | {"eval.data": filled}))
    assert_exit_2(result, *parts)
    assert not run.exists()


def test_missing_validation_half(data: Path, tmp_path: Path) -> None:
    for suffix in (".bin", ".idx"):
        shutil.copy(f"{data}-train{suffix}", tmp_path / f"mine-train{suffix}")
    run = tmp_path / "run"
    result = hero(*training(run, tmp_path / "mine-train", VALID | {"model.vocab_size": 512}))
    assert_exit_2(
        result, f"eval.data: found no {tmp_path}/mine-valid.idx next to the training data", "eval.every = 0"
    )
    assert not run.exists()
    run_hero(*training(run, tmp_path / "mine-train", HERO | {"model.vocab_size": 512}))


def test_names_of_several_training_sets(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for file in data.parent.glob("corpus*"):
            shutil.copy(file, tmp_path / folder / file.name)
    words = training(run, None, VALID, "--data", f"1:{tmp_path}/a/corpus", f"2:{tmp_path}/b/corpus-train")
    assert_exit_2(hero(*words), 'eval.data: found two data sets named "corpus"', "NAME=PREFIX")
    run_hero(*words, f"--eval.data=one={tmp_path}/a/corpus,two={tmp_path}/b/corpus")
    assert metrics(run)[-1]["valid"].keys() == {"one", "two"}


def test_options_without_effect(data: Path, tmp_path: Path) -> None:
    settings = {"eval.batches": 2, "eval.data": ["x"], "train.steps": 2}
    lines = run_hero(*training(tmp_path / "run", data, settings)).stderr.splitlines()
    assert "warning: eval.batches = 2 has no effect: eval.every = 0" in lines
    assert 'warning: eval.data = ["x"] has no effect: eval.every = 0' in lines
    settings = {"eval.every": 2, "checkpoint.keep_best": True, "train.steps": 2}
    lines = run_hero(*training(tmp_path / "other", data, settings)).stderr.splitlines()
    assert any(line.startswith("warning: checkpoint.keep_best = true has no effect") for line in lines)
