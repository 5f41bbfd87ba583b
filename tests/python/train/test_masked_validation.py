"""Validation with train.loss_mask and separate documents: the loss that training minimizes, in every layout, after a
resume, and by `hero eval`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_files import documents, some_chats, write_chats
from program import (
    DEEPSEEK,
    assert_exit_2,
    assert_resumes_alike,
    checkpoint,
    hero,
    metrics,
    run_hero,
    training,
    valid_losses,
)
from ranks import run_on

DOCUMENTS = {"train.document_mask": True, "train.document_positions": True}
MODEL: dict[str, Any] = DOCUMENTS | {
    "router.kind": "hero",
    "router.balance": "sequence",
    "model.num_hidden_layers": 4,
    "train.loss_mask": True,
    "train.pack": "best_fit",
    "train.sequence": 40,
    "train.steps": 3,
    "train.micro_batch": 1,
    "train.global_batch": 4,
    "train.dtype": "fp64",
    "optim.lr": 1e-2,
    "optim.warmup_steps": 1,
    "eval.every": 2,
    "parallel.timeout": 60,
}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "micro-batches of 4": (1, {"train.micro_batch": 4}),
    "data 2": (2, {"train.micro_batch": 2}),
    "data 4": (4, {}),
    "expert 2": (2, {"parallel.expert": 2}),
    "pipeline 4": (4, {"parallel.pipeline": 4}),
    "zero bubble": (2, {"parallel.pipeline": 2, "parallel.schedule": "zero_bubble"}),
    "interleaved": (2, {"parallel.pipeline": 2, "parallel.schedule": "interleaved", "parallel.chunks": 2}),
}


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 conversations, about a third of them held out."""
    return write_chats(tmp_path_factory.mktemp("chat"), some_chats(80), valid_fraction=0.3)


@pytest.fixture(scope="module")
def sets(chat: Path) -> list[str]:
    """The held-out conversations, and two alone, which leave ranks without work."""
    few = write_chats(chat.parent, some_chats(2), "few")
    return [f"held-out={chat}", f"few={few}-train"]


@pytest.fixture(scope="module")
def alone(chat: Path, sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process."""
    run = tmp_path_factory.mktemp("alone") / "run"
    run_hero(*training(run, chat, MODEL | {"eval.data": sets}))
    return run


def validations(run: Path) -> list[dict[str, Any]]:
    return [line for line in metrics(run) if "valid" in line]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, alone: Path, chat: Path, sets: list[str], tmp_path: Path) -> None:
    ranks, settings = LAYOUTS[layout]
    words = training(tmp_path / "run", chat, MODEL | settings | {"eval.data": sets})
    run_on(words, ranks, tmp_path / "log")
    found, expected = validations(tmp_path / "run"), validations(alone)
    assert [line["step"] for line in found] == [line["step"] for line in expected] == [2, 3]
    for mine, theirs in zip(found, expected):
        assert list(mine["valid"]) == ["held-out", "few"]
        assert mine["valid"] == pytest.approx(theirs["valid"], rel=1e-9, abs=0)
        assert mine["valid_loss"] == pytest.approx(theirs["valid_loss"], rel=1e-9, abs=0)


@pytest.mark.parametrize("dtype", ["fp64", "bf16"])
@pytest.mark.parametrize("model", ["qwen3", "deepseek with modules"])
def test_equals_hero_eval(dtype: str, model: str, chat: Path, sets: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    more = DEEPSEEK | {"model.num_nextn_predict_layers": 1} if model != "qwen3" else {}
    run_hero(*training(run, chat, MODEL | more | {"train.dtype": dtype, "eval.data": sets}))
    run_hero("eval", run, "--data", *(entry.split("=")[1] for entry in sets), "--batch", 1)
    entries = json.loads((run / "eval.json").read_text())["datasets"]
    last = metrics(run)[-1]
    assert list(last["valid"].values()) == pytest.approx([e["trained_loss"] for e in entries], rel=1e-12)
    mean = np.average([e["trained_loss"] for e in entries], weights=[e["trained_tokens"] for e in entries])
    assert last["valid_loss"] == pytest.approx(mean, rel=1e-12)
    assert all(abs(e["loss"] - e["trained_loss"]) > 1e-2 for e in entries)


def reference_losses(folder: Path, prefix: str, sequence: int, separate: bool) -> np.ndarray:
    """The cross-entropies of all tokens but the first, by transformers: windows, or with `separate` every piece of
    a document in a window on its own."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    model.set_experts_implementation("eager")  # the default does not support fp64
    parts = documents(Path(prefix))
    tokens = torch.tensor([token for part in parts for token in part])
    begins = set(np.cumsum([len(part) for part in parts]).tolist())
    losses: list[float] = []
    last = len(tokens) - 1
    cuts = [i for i in range(last) if i % sequence == 0 or (separate and i in begins)]
    for begin, end in zip(cuts, [*cuts[1:], last]):
        with torch.no_grad():
            logits = model(tokens[None, begin:end]).logits[0]
        targets = tokens[begin + 1 : end + 1]
        losses += torch.nn.functional.cross_entropy(logits, targets, reduction="none").tolist()
    return np.array(losses)


@pytest.mark.parametrize("loss_mask", [False, True])
@pytest.mark.parametrize("separate", [False, True])
def test_equals_transformers(loss_mask: bool, separate: bool, chat: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings: dict[str, Any] = dict.fromkeys(DOCUMENTS, separate) | {"train.loss_mask": loss_mask}
    settings["router.kind"] = "baseline"
    run_hero(*training(run, chat, MODEL | settings))
    losses = reference_losses(checkpoint(run, 3), f"{chat}-valid", 40, separate)
    mask = np.fromfile(f"{chat}-valid-mask.bin", "u1")[1:] != 0
    expected = losses[mask].mean() if loss_mask else losses.mean()
    assert metrics(run)[-1]["valid_loss"] == pytest.approx(expected, rel=1e-6)
    run_hero("eval", run, "--data", chat)
    (entry,) = json.loads((run / "eval.json").read_text())["datasets"]
    assert entry["loss"] == pytest.approx(losses.mean(), rel=1e-6)
    assert entry["trained_loss"] == pytest.approx(losses[mask].mean(), rel=1e-6)
    other = reference_losses(checkpoint(run, 3), f"{chat}-valid", 40, not separate)
    assert abs(other[mask].mean() - losses[mask].mean()) > 1e-4


def test_resume(chat: Path, tmp_path: Path) -> None:
    """The best checkpoint is that of the lowest loss of the marked tokens."""
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    settings = {"train.steps": 6, "checkpoint.every": 2, "checkpoint.keep_best": True, "eval.batches": 2}
    run_hero(*training(whole, chat, MODEL | settings))
    assert "validation data" not in assert_resumes_alike(whole, halves, 6).stderr
    best = json.loads((halves / "best.json").read_text())
    assert best == json.loads((whole / "best.json").read_text())
    assert best["valid_loss"] == min(valid_losses(whole).values())


def test_changed_mask(chat: Path, tmp_path: Path) -> None:
    for file in chat.parent.glob("chat*"):
        if file.is_file():
            shutil.copy(file, tmp_path)
    run, mask = tmp_path / "run", tmp_path / "chat-valid-mask.bin"
    run_hero(*training(run, tmp_path / "chat", MODEL))
    before = metrics(run)[-1]["valid_loss"]
    mask.write_bytes(bytes(1 - mark for mark in mask.read_bytes()))
    resumed = run_hero("train", "--run", run, "--resume", "--train.steps=4", "--optim.decay_steps=4")
    assert str(mask) in resumed.stderr
    assert abs(metrics(run)[-1]["valid_loss"] - before) > 1e-2


def test_data_without_marks(chat: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for suffix in ("bin", "idx"):
        shutil.copy(f"{chat}-valid.{suffix}", tmp_path / f"plain.{suffix}")
    done = hero(*training(run, chat, MODEL | {"eval.data": [f"{tmp_path}/plain"]}))
    assert_exit_2(done, f"hero: eval.data: {tmp_path}/plain-mask.idx: not found", "train.loss_mask = true")
    silent = write_chats(chat.parent, [[{"role": "user", "content": "no answer at all " * 4}]] * 5, "silent")
    done = hero(*training(run, chat, MODEL | {"eval.data": [f"{silent}-train"]}))
    assert_exit_2(
        done,
        f"hero: eval.data: {silent}-train-mask.bin: found no mark among the ",
        "expected one for train.loss_mask = true",
    )
    assert not run.exists()
    run_hero(*training(run, chat, MODEL | {"train.loss_mask": False, "eval.data": [f"{tmp_path}/plain"]}))
