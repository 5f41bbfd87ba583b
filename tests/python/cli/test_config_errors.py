"""Invalid configurations: exit status 2 and one line with the file or flag, the value found and the value
expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from program import (
    DEEPSEEK,
    ENVIRONMENT,
    assert_exit_2,
    hero,
    training,
)

QWEN: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("base", "flag", "parts"),
    [
        # single keys and values
        (QWEN, "--router.windo=3", ["--router.windo: unknown key", "router.window?"]),
        (QWEN, "--model.hiden_size=3", ["--model.hiden_size: unknown key", "model.hidden_size?"]),
        (QWEN, "--models.hidden_size=3", ["--models.hidden_size: unknown key", "model.hidden_size?"]),
        (QWEN, "--router.window", ["--router.window: found no value, expected --router.window=value"]),
        (QWEN, "--steps", ["--steps: unknown key; did you mean train.steps?"]),
        (QWEN, "--steps=5", ["--steps: unknown key; did you mean train.steps?"]),
        (QWEN, "--router.window=", ["--router.window: found an empty value", "an integer from 0"]),
        (QWEN, "--router.window=few", ["--router.window: found few", "an integer from 0"]),
        (QWEN, "--router.window=1.5", ["--router.window: found 1.5", "an integer"]),
        (QWEN, "--router.scale=1", ["--router.scale: found 1", "true or false"]),
        (QWEN, "--router.kind=rnn", ["--router.kind: found rnn", "one of baseline, hero, rmoe"]),
        (QWEN, "--train.dtype=fp16", ["--train.dtype: found fp16", "one of bf16, fp32, fp64"]),
        (QWEN, "--train.device=gpu", ["--train.device: found gpu", "one of auto, cpu, cuda"]),
        (QWEN, "--optim.beta1=1", ["--optim.beta1: found 1", "below 1"]),
        (QWEN, "--optim.lr=nan", ["--optim.lr: found nan", "a finite number"]),
        (QWEN, "--optim.lr=0", ["--optim.lr: found 0", "above 0"]),
        (QWEN, "--model.hidden_size=0", ["--model.hidden_size: found 0", "an integer from 1"]),
        (QWEN, "--train.steps=-1", ["--train.steps: found -1", "an integer from 1"]),
        (QWEN, "--train.seed=99999999999999999999", ["--train.seed: found 99999999999999999999"]),
        # inconsistent values
        (QWEN, "--model.num_experts_per_tok=9", ["model.num_experts_per_tok: found 9", "num_experts = 8"]),
        (QWEN, "--model.num_attention_heads=5", ["model.num_attention_heads: found 5", "num_key_value_heads = 2"]),
        (QWEN, "--model.head_dim=15", ["model.head_dim: found 15", "an even number"]),
        (QWEN, "--router.stages=4", ["router.stages: found 4", "at most the 3 MoE layers"]),
        (QWEN, "--model.n_shared_experts=1", ["model.n_shared_experts: found 1", "deepseek_v3"]),
        (QWEN, "--model.scoring_func=sigmoid", ["model.scoring_func", "deepseek_v3"]),
        (QWEN, "--router.bias_update_rate=0.1", ["router.bias_update_rate: found 0.1", "deepseek_v3"]),
        (QWEN, "--train.global_batch=3", ["train.global_batch: found 3", "train.micro_batch = 2"]),
        (QWEN, "--train.sequence=129", ["train.sequence: found 129", "max_position_embeddings = 128"]),
        (QWEN, "--optim.min_lr=1", ["optim.min_lr: found 1.0", "optim.lr = 0.001"]),
        (QWEN, "--optim.warmup_steps=7", ["optim.warmup_steps: found 7", "train.steps = 6"]),
        (DEEPSEEK, "--model.n_group=3", ["model.num_experts: found 8", "a multiple of model.n_group = 3"]),
        (DEEPSEEK, "--model.topk_group=2", ["model.topk_group: found 2", "model.n_group = 1"]),
        (DEEPSEEK, "--model.n_group=8", ["model.n_group: found 8", "at least 2"]),
        (DEEPSEEK, "--model.first_k_dense_replace=3",
         ["model.first_k_dense_replace: found 3", "num_hidden_layers = 3"]),
        (DEEPSEEK, "--router.stages=3", ["router.stages: found 3", "at most the 2 MoE layers"]),
        (DEEPSEEK | {"model.n_group": 4}, "--model.num_experts_per_tok=3",
         ["model.num_experts_per_tok: found 3", "at most 2", "topk_group = 1"]),
        (DEEPSEEK | {"train.recompute": True}, "--router.detach=false", ["router.detach", "train.recompute"]),
        (QWEN | {"train.recompute": True}, "--train.cuda_graph=true", ["train.cuda_graph", "train.recompute"]),
    ],
)  # fmt: skip
def test_configuration(data: Path, tmp_path: Path, base: dict[str, Any], flag: str, parts: list[str]) -> None:
    run = tmp_path / "run"
    assert_exit_2(hero(*training(run, data, base, flag)), *parts)
    assert not run.exists()


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides all GPUs."""
    monkeypatch.setitem(ENVIRONMENT, "CUDA_VISIBLE_DEVICES", "")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("command", ["train", "eval", "generate", "logits", "diff"])
def test_no_gpu(data: Path, tmp_path: Path, command: str) -> None:
    """The device is checked first, before anything is read or written."""
    run = tmp_path / "run"
    words: dict[str, list[Any]] = {
        "train": training(run, data, {"train.device": "cuda"}),
        "eval": ["eval", run, "--data", data],
        "generate": ["generate", run, "--prompt", "x"],
        "logits": ["logits", run, "--tokens", "t.json", "--out", tmp_path / "out"],
        "diff": ["diff", run, run, "--text", "x"],
    }
    key = "train.device" if command == "train" else "--device"
    result = hero(*words[command], *([] if command == "train" else ["--device", "cuda"]))
    assert_exit_2(result, f"{key}: found cuda, expected auto or cpu here: no ")
    assert "NVIDIA driver (libcuda.so.1)" in result.stderr or "CUDA device" in result.stderr
    assert not run.exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[model]\nhiden_size = 64\n", [":2: model.hiden_size: unknown key", "model.hidden_size?"]),
        ("[modle]\nhidden_size = 64\n", [":2: modle.hidden_size: unknown key", "model.hidden_size?"]),
        ('[train]\n\nsteps = "many"\n', [":3: train.steps: found", "many", "an integer from 1"]),
        ("[train]\nsteps = 1.5\n", [":2: train.steps: found 1.5", "an integer from 1"]),
        ("[train]\nsteps = [1]\n", [":2: train.steps: found an array", "an integer from 1"]),
        ("[optim]\nlr = -1\n", [":2: optim.lr: found -1", "above 0"]),
        ("model = 3\n", [":1: model: found 3", "the section [model]"]),
        ("[train]\nsteps = = 3\n", [":2:9: invalid TOML"]),
        ("[train]\nsteps = 3\nsteps = 4\n", [":3:", "invalid TOML"]),
        ("[model]\nnum_experts = 8\nn_routed_experts = 8\n",
         [":3: model.n_routed_experts", "model.num_experts in line 2"]),
        ("\0\x01\x02", [":1:", "invalid TOML"]),
    ],
)  # fmt: skip
def test_configuration_file(data: Path, tmp_path: Path, text: str, parts: list[str]) -> None:
    file, run = tmp_path / "wrong.toml", tmp_path / "run"
    file.write_text(text)
    result = hero("train", "--config", file, "--data", data, "--run", run)
    assert_exit_2(result, f"{file}{parts[0]}", *parts[1:])
    assert not run.exists()


def test_configuration_folder(data: Path, tmp_path: Path) -> None:
    result = hero("train", "--config", tmp_path, "--data", data, "--run", tmp_path / "run")
    assert result.returncode == 2
    assert str(tmp_path) in result.stderr
