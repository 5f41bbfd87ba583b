"""train.loss_mask and train.pack: the same loss in every layout, resume, and errors."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_files import some_chats, write_chats
from program import (
    assert_exit_2,
    assert_resumes_alike,
    checkpoint,
    hero,
    metrics,
    run_hero,
    training,
)
from ranks import run_on

MASKED = {"train.loss_mask": True, "train.pack": "best_fit"}
MODEL: dict[str, Any] = MASKED | {
    "router.kind": "hero",
    "router.balance": "sequence",
    "router.balance_loss": 1e-2,
    "router.z_loss": 1e-3,
    "model.num_hidden_layers": 4,
    "train.sequence": 40,
    "train.steps": 5,
    "train.micro_batch": 1,
    "train.global_batch": 8,
    "train.dtype": "fp64",
    "parallel.timeout": 60,
}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "micro-batches of 2": (1, {"train.micro_batch": 2}),
    "micro-batches of 4": (1, {"train.micro_batch": 4}),
    "recomputation": (1, {"train.micro_batch": 8, "train.recompute": True}),
    "data 2": (2, {"train.micro_batch": 2}),
    "expert 2": (2, {"parallel.expert": 2}),
    "pipeline 2": (2, {"parallel.pipeline": 2}),
    "pipeline 2, zero bubble": (2, {"parallel.pipeline": 2, "parallel.schedule": "zero_bubble"}),
    "data 2, pipeline 2": (4, {"parallel.pipeline": 2, "train.micro_batch": 2}),
}


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 conversations; the answers have between 1 and 60 tokens."""
    return write_chats(tmp_path_factory.mktemp("chat"), some_chats(60))


def trained(run: Path, data: Path, settings: dict[str, Any], ranks: int = 1) -> list[dict[str, Any]]:
    run_on(training(run, data, settings), ranks, run.with_suffix(".log"))
    return metrics(run)


@pytest.fixture(scope="module")
def alone(chat: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Micro-batches of one sequence."""
    return trained(tmp_path_factory.mktemp("alone") / "run", chat, MODEL)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_same_loss_in_every_layout(
    chat: Path, alone: list[dict[str, Any]], tmp_path: Path, layout: str
) -> None:
    ranks, settings = LAYOUTS[layout]
    lines = trained(tmp_path / "run", chat, MODEL | settings, ranks)
    assert len(lines) == len(alone) == 5
    for line, expected in zip(lines, alone):
        assert line["trained_tokens"] == expected["trained_tokens"]
        for key in ("loss", "lm_loss", "grad_norm"):
            assert line[key] == pytest.approx(expected[key], rel=1e-9, abs=0), key
    assert len({line["trained_tokens"] for line in alone}) > 2


@pytest.mark.parametrize("pack", ["concat", "best_fit"])
def test_every_marked_token_once_per_epoch(chat: Path, tmp_path: Path, pack: str) -> None:
    """Documents begin with tokens of the user, so best_fit trains on all marked tokens; concat drops an
    incomplete last sample, and the first token."""
    settings = {"train.loss_mask": True, "train.pack": pack, "train.steps": 80, "train.sequence": 100}
    lines = trained(tmp_path / "run", chat, settings | {"train.micro_batch": 1, "train.global_batch": 1})
    marked = json.loads(Path(f"{chat}.json").read_text())["splits"]["train"]["trained_tokens"]
    sums = list(itertools.accumulate(line["trained_tokens"] for line in lines))
    if pack == "best_fit":
        samples = sums.index(marked) + 1
        assert sums[2 * samples - 1] == 2 * marked
    else:
        tokens = json.loads(Path(f"{chat}.json").read_text())["splits"]["train"]["tokens"]
        samples = (tokens - 1) // 100
        assert marked - 100 < sums[samples - 1] <= marked
    assert 10 < samples < 40


def test_padding_is_not_trained_on(chat: Path, tmp_path: Path) -> None:
    """Without a mask, all targets of the documents; the start of the log has the share of padding."""
    run = tmp_path / "run"
    settings = {"train.pack": "best_fit", "train.micro_batch": 1, "train.global_batch": 1}
    done = run_hero(*training(run, chat, settings | {"train.steps": 40, "train.sequence": 128}))
    counts = json.loads(Path(f"{chat}.json").read_text())["splits"]["train"]
    sums = list(itertools.accumulate(line["trained_tokens"] for line in metrics(run)))
    samples = sums.index(counts["tokens"] - counts["documents"]) + 1
    padding = 1 - counts["tokens"] / (samples * 129)
    (line,) = [line for line in done.stderr.splitlines() if "are split" in line]
    assert line == f"{chat}-train: 0 of 60 documents (0.0%) are split, padding {100 * padding:.1f}%"
    assert metrics(run)[-1]["tokens"] == 40 * 128


def test_metrics_of_a_run_without_padding_or_mask(chat: Path, tmp_path: Path) -> None:
    done = run_hero(*training(tmp_path / "run", chat, {"train.steps": 2}))
    assert all("trained_tokens" not in line for line in metrics(tmp_path / "run"))
    assert f"{chat}-train: " in done.stderr and "padding 0.0%" in done.stderr


@pytest.mark.parametrize("pack", ["concat", "best_fit"])
def test_resume_in_the_middle(chat: Path, tmp_path: Path, pack: str) -> None:
    """Several epochs, with two micro-batches per step."""
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    settings = {"train.loss_mask": True, "train.pack": pack, "train.steps": 30, "checkpoint.every": 15}
    run_hero(*training(whole, chat, settings | {"train.micro_batch": 1}))
    assert_resumes_alike(whole, halves, 30)


def test_steps_without_trained_tokens(tmp_path: Path) -> None:
    """Their cross-entropy is 0, and the weights stay finite."""
    data = write_chats(tmp_path, [[{"role": "user", "content": "no answer at all " * 4}]] * 20)
    lines = trained(tmp_path / "run", data, MASKED | {"train.sequence": 40, "router.balance_loss": 0.01})
    assert [(line["trained_tokens"], line["lm_loss"]) for line in lines] == [(0, 0.0)] * 6
    assert all(0 < line["loss"] < 1 and line["grad_norm"] > 0 for line in lines)


def test_missing_mask(data: Path, tmp_path: Path) -> None:
    done = hero(*training(tmp_path / "run", data, {"train.loss_mask": True}))
    assert_exit_2(
        done,
        f"hero: {data}-train-mask.idx: not found, expected the loss mask for train.loss_mask = true; "
        "python -m hero_moe.data tokenize writes one with --messages, or --prompt and --response",
    )
    assert not (tmp_path / "run").exists()


def test_replaced_mask(chat: Path, tmp_path: Path) -> None:
    for file in chat.parent.glob("chat*"):
        if file.is_file():
            shutil.copy(file, tmp_path)
    data, run = tmp_path / "chat", tmp_path / "run"
    run_hero(*training(run, data, MASKED | {"train.steps": 2}))
    mask = Path(f"{data}-train-mask.bin")
    mask.write_bytes(mask.read_bytes()[::-1])
    done = hero("train", "--run", run, "--resume", "--train.steps=4")
    assert_exit_2(done, f"{mask}: found ", "restore the file, or pass --data-changed")
    run_hero("train", "--run", run, "--resume", "--train.steps=4", "--data-changed")


def test_hero_eval_reports_the_marked_tokens(chat: Path, tmp_path: Path) -> None:
    """Against transformers and the mask file, token by token."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    run, sequence = tmp_path / "run", 40
    settings = {"train.loss_mask": True, "train.dtype": "fp32", "train.sequence": sequence, "optim.lr": 1e-2}
    run_hero(*training(run, chat, settings))
    table = run_hero("eval", run, "--data", f"{chat}-train", "--batch", 3).stdout.splitlines()
    (entry,) = json.loads((run / "eval.json").read_text())["datasets"]
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint(run, 6), dtype=torch.float32).eval()
    tokens = torch.from_numpy(np.fromfile(f"{chat}-train.bin", "<u2").astype(np.int64))
    mask = np.fromfile(f"{chat}-train-mask.bin", "u1")
    losses: list[float] = []
    for begin in range(0, len(tokens) - 1, sequence):
        window = tokens[begin : begin + sequence + 1]
        with torch.no_grad():
            logits = model(window[None, :-1]).logits[0].double()
        losses += torch.nn.functional.cross_entropy(logits, window[1:], reduction="none").tolist()
    marked = [loss for loss, mark in zip(losses, mask[1:], strict=True) if mark]
    assert (entry["tokens"], entry["trained_tokens"]) == (len(losses), len(marked))
    assert entry["loss"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert entry["trained_loss"] == pytest.approx(np.mean(marked), abs=1e-5)
    assert abs(np.mean(marked) - np.mean(losses)) > 1e-2
    assert entry["trained_perplexity"] == pytest.approx(np.exp(entry["trained_loss"]), rel=1e-12)
    assert [line.split()[0] for line in table] == ["data", "chat-train", "chat-train,"]
    assert table[2].split()[1:5] == ["loss", "mask", str(len(marked)), f"{entry['trained_loss']:.4f}"]


def test_hero_eval_without_marked_tokens(chat: Path, data: Path, tmp_path: Path) -> None:
    """No mask, or a mask without marks; a damaged mask is an error."""
    run = tmp_path / "run"
    run_hero(*training(run, chat, {"train.steps": 1, "optim.warmup_steps": 1}))
    silent = write_chats(chat.parent, [[{"role": "user", "content": "no answer at all " * 4}]] * 5, "silent")
    for file in chat.parent.glob("chat-train.*"):
        shutil.copy(file, tmp_path / file.name.replace("chat", "plain"))
    for prefix in (f"{silent}-train", tmp_path / "plain-train"):
        result = run_hero("eval", run, "--data", prefix)
        assert "loss mask" not in result.stdout
        (entry,) = json.loads((run / "eval.json").read_text())["datasets"]
        assert set(entry) == {"name", "tokens", "loss", "perplexity", "token_files"}
    for kind in ("bin", "idx"):
        shutil.copy(f"{silent}-train-mask.{kind}", tmp_path / f"plain-train-mask.{kind}")
    done = hero("eval", run, "--data", tmp_path / "plain-train")
    assert_exit_2(done, f"{tmp_path}/plain-train-mask.idx: found 5 documents, expected 60 as in")


def test_benchmarks_warn() -> None:
    words = ["bench", "step", "--config", "demo", "--steps=1", "--warmup=0", "--train.sequence=8"]
    words += ["--model.num_hidden_layers=2", "--model.vocab_size=64", "--train.threads=1"]
    words.append("--data.phase=[{blend = ['a']}]")
    done = run_hero(*words, "--train.loss_mask=true", "--train.pack=best_fit")
    why = "has no effect: hero bench trains on all of its random tokens"
    assert done.stderr.splitlines()[:3] == [
        f"warning: train.loss_mask = true {why}",
        f'warning: train.pack = "best_fit" {why}',
        f'warning: data.phase = [{{blend = ["a"]}}] {why}',
    ]
