"""Invalid input: exit status 2 and one line with the file, key or byte, the value found and the value
expected. Runtime failures: exit status 1."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from program import (
    DEEPSEEK,
    ENVIRONMENT,
    SMALL,
    assert_exit_2,
    checkpoint,
    checkpoint_names,
    deterministic_metrics,
    folder_bytes,
    hero,
    metrics,
    run_hero,
    toml,
    training,
    write_megatron,
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
        (QWEN, "--router.kind=rmoe", ["--router.kind: found rmoe", "one of baseline, hero"]),
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


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


def overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


@pytest.mark.parametrize(
    ("corrupt", "ending", "parts"),
    [
        (lambda p: p.with_suffix(".idx").unlink(), ".idx", ["cannot be opened", "Megatron"]),
        (lambda p: p.with_suffix(".bin").unlink(), ".bin", ["cannot be opened", "Megatron"]),
        (lambda p: cut(p.with_suffix(".bin"), 0), ".bin", ["0", "800"]),
        (lambda p: cut(p.with_suffix(".bin"), 798), ".bin", ["798", "800"]),
        (lambda p: cut(p.with_suffix(".idx"), 0), ".idx", ["size in bytes 0, expected 34"]),
        (lambda p: cut(p.with_suffix(".idx"), 60), ".idx", ["size in bytes 60, expected 122"]),
        (lambda p: overwrite(p.with_suffix(".idx"), 0, b"TWIDDLE"), ".idx", ["MMIDIDX"]),
        (lambda p: overwrite(p.with_suffix(".idx"), 9, b"\2"), ".idx", ["byte 9: version 2, expected 1"]),
        (lambda p: overwrite(p.with_suffix(".idx"), 17, b"\7"), ".idx", ["byte 17", "floats", "integers"]),
        (lambda p: overwrite(p.with_suffix(".idx"), 18, b"\xff" * 8), ".idx", ["byte 18", "122 bytes"]),
        (lambda p: overwrite(p.with_suffix(".idx"), 34, b"\xff"), ".idx", ["pointer 200, expected 510"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["train", "eval"])
def test_token_files(
    trained: Path,
    tmp_path: Path,
    command: str,
    corrupt: Callable[[Path], None],
    ending: str,
    parts: list[str],
) -> None:
    prefix = tmp_path / "tokens"
    write_megatron(prefix, [[d, *range(99)] for d in range(4)])
    corrupt(prefix)
    if command == "train":
        result = hero(*training(tmp_path / "run", prefix, {"model.vocab_size": 500}))
    else:
        result = hero("eval", trained, "--data", prefix)
    assert_exit_2(result, str(prefix) + ending, *parts)


def test_healthy_token_files(tmp_path: Path) -> None:
    """What the table above breaks trains when it is whole."""
    write_megatron(tmp_path / "tokens", [[d, *range(99)] for d in range(4)])
    run = tmp_path / "run"
    run_hero(*training(run, tmp_path / "tokens", {"model.vocab_size": 500, "train.steps": 2}))
    assert len(metrics(run)) == 2
    assert_exit_2(
        hero("generate", run, "--prompt", "a"),
        f"{checkpoint(run, 2)}: found a folder without tokenizer.model",
    )


def test_token_beyond_the_vocabulary(tmp_path: Path) -> None:
    write_megatron(tmp_path / "tokens", [[1] * 100, [2, 2, 500, 3]])
    result = hero(*training(tmp_path / "run", tmp_path / "tokens", {"model.vocab_size": 500}))
    assert_exit_2(result, str(tmp_path / "tokens.bin"), "document 1, token 2: id 500, expected 0 to 499")


def test_negative_token(tmp_path: Path) -> None:
    write_megatron(tmp_path / "tokens", [[1] * 70, [-3] * 70], "int32")
    result = hero(*training(tmp_path / "run", tmp_path / "tokens", {"model.vocab_size": 500}))
    assert_exit_2(result, str(tmp_path / "tokens.bin"), "document 1, token 0: id -3", "expected 0 to 499")


def test_too_few_tokens(tmp_path: Path) -> None:
    write_megatron(tmp_path / "tokens", [[1] * 64])
    result = hero(*training(tmp_path / "run", tmp_path / "tokens", {"model.vocab_size": 500}))
    assert_exit_2(result, str(tmp_path / "tokens.bin"), "64 tokens", "at least 65", "train.sequence = 64")


def test_no_vocabulary(tmp_path: Path) -> None:
    write_megatron(tmp_path / "tokens", [[1] * 90])
    result = hero(*training(tmp_path / "run", tmp_path / "tokens", {}))
    assert_exit_2(result, "model.vocab_size: 0", str(tmp_path / "tokens"), "expected the vocabulary's size")


def test_missing_data(tmp_path: Path) -> None:
    assert_exit_2(hero(*training(tmp_path / "run", None, {})), "--data: none given", "PREFIX")
    result = hero(*training(tmp_path / "run", tmp_path / "nothing", {}))
    assert_exit_2(result, str(tmp_path / "nothing.idx"), "cannot be opened")
    result = hero(*training(tmp_path / "run", None, {}, "--data", "0:x"))
    assert_exit_2(result, "--data 0:x", "a weight above 0")
    assert not (tmp_path / "run").exists()


def test_vocabulary_larger_than_the_model(data: Path, tmp_path: Path) -> None:
    result = hero(*training(tmp_path / "run", data, {"model.vocab_size": 499}))
    assert_exit_2(result, f"{data}-train.bin", "found vocabulary size 500", "at most model.vocab_size = 499")


def test_two_tokenizers(data: Path, corpus: Path, tmp_path: Path) -> None:
    model, other = tmp_path / "other.model", tmp_path / "other"
    run_hero("data", "tokenizer", "--input", corpus, "--vocab-size", 400, "--out", model, "--workers", 1)
    run_hero("data", "tokenize", "--input", corpus, "--tokenizer", model, "--out", other, "--workers", 1)
    result = hero(*training(tmp_path / "run", None, {}, "--data", f"1:{data}", f"1:{other}"))
    assert_exit_2(result, str(other), "tokenizer")


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("empty.txt", b"", [": empty file, expected text"]),
        ("binary.txt", bytes(range(256)), [": byte 0: NUL byte, expected UTF-8 text"]),
        ("latin.txt", "Käse".encode("latin-1"), [": byte 1: invalid UTF-8 (0xE4)"]),
        ("surrogate.py", b"x = 1\n\xed\xa0\x80", [": byte 6: invalid UTF-8 (0xED)"]),
        ("cut.md", "文".encode()[:2], [": byte 0: invalid UTF-8 (0xE6)"]),
        ("wrong.jsonl", b'{"text": "a"}\n{"text": \xff}\n', [": line 2, byte 23: invalid UTF-8 (0xFF)"]),
        ("broken.jsonl", b'{"text": "a"}\n{"text": ]\n', [": line 2, byte 23: found invalid JSON"]),
        ("large.jsonl", b'{"text": "a"}\n{"text": "b", "n": 1e400}\n', [": line 2: found number '1e400'"]),
        ("list.jsonl", b"[1]\n", [": line 1, byte 0: found array, expected a JSON object"]),
        ("number.jsonl", b'{"text": 3}\n', [': line 1, byte 0: field "text" is number, expected a string']),
        ("other.jsonl", b'{"body": "a"}\n', [': line 1, byte 0: no field "text", found "body"']),
        ("blank.jsonl", b"\n\n", [": no document found"]),
        ("picture.png", b"\x89PNG", [': unknown extension ".png"', ".jsonl"]),
        ("missing.txt", None, [": no such file or folder"]),
    ],
)
def test_text(data: Path, tmp_path: Path, name: str, content: bytes | None, parts: list[str]) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    result = hero(
        "data", "tokenize", "--input", file, "--tokenizer", f"{data}.model", "--out", tmp_path / "out"
    )
    assert_exit_2(result, f"{file}{parts[0]}", *parts[1:])
    assert not (tmp_path / "out-train.idx").exists() and not (tmp_path / "out.json").exists()


def test_folder_without_text(data: Path, tmp_path: Path) -> None:
    result = hero(
        "data", "tokenize", "--input", tmp_path, "--tokenizer", f"{data}.model", "--out", tmp_path / "out"
    )
    assert_exit_2(result, f"{tmp_path}: no file to read", ".txt")


def test_tokenizer_file(data: Path, corpus: Path, tmp_path: Path) -> None:
    words = ["data", "tokenize", "--input", corpus, "--out", tmp_path / "out", "--tokenizer"]
    assert_exit_2(hero(*words, tmp_path / "none.model"), f"{tmp_path / 'none.model'}: no such file")
    assert_exit_2(hero(*words, f"{data}.json"), f'{data}.json: found JSON without a "model"')
    assert_exit_2(
        hero(*words, tmp_path), f"{tmp_path}: found a folder without tokenizer.model and tokenizer.json"
    )


@pytest.mark.parametrize(
    ("size", "part"), [(100, "expected 262 to"), (100000, "too few different words, expected at most")]
)
def test_vocabulary_size(corpus: Path, tmp_path: Path, size: int, part: str) -> None:
    result = hero("data", "tokenizer", "--input", corpus, "--vocab-size", size, "--out", tmp_path / "x.model")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith(f"hero: --vocab-size {size}: ") and part in result.stderr
    assert not (tmp_path / "x.model").exists()


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of a HERO model; tests modify only copies."""
    run = tmp_path_factory.mktemp("trained") / "run"
    run_hero(*training(run, data, {"router.kind": "hero", "train.steps": 2}))
    return run


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[" * 1_000_000, "found values nested deeper than 100 levels"),
        ("[" * 90 + "]" * 90, "list 0: found [["),
        ("[[1, 2]", "byte 7: found invalid JSON"),
        ("[[1, 1e400]]", "found number '1e400'"),
        ("{}", "found no list of lists of token ids"),
    ],
    ids=["million brackets", "nested", "truncated", "number", "object"],
)
def test_token_lists(trained: Path, tmp_path: Path, text: str, part: str) -> None:
    tokens = tmp_path / "tokens.json"
    tokens.write_text(text)
    result = hero("logits", trained, "--tokens", tokens, "--out", tmp_path / "out")
    assert_exit_2(result, f"{tokens}: {part}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [["eval", "--data", "DATA"], ["generate", "--prompt", "a"]])
@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda p: None, ["no such folder", "a run folder, a checkpoint or a model folder"]),
        (lambda p: p.write_text("x"), ["found a file", "a run folder, a checkpoint or a model folder"]),
        (lambda p: p.mkdir(), ["found neither config.json with model.safetensors", "nor checkpoints/"]),
        (lambda p: (p / "checkpoints").mkdir(parents=True), ["/checkpoints: found no finished checkpoint"]),
    ],
)
def test_no_model(
    data: Path, tmp_path: Path, words: list[str], make: Callable[[Path], None], parts: list[str]
) -> None:
    folder = tmp_path / "folder"
    make(folder)
    command, *options = [str(data) if word == "DATA" else word for word in words]
    assert_exit_2(
        hero(command, folder, *options), str(folder) + (parts[0] if parts[0][0] == "/" else ""), *parts
    )


def test_report_without_runs(tmp_path: Path) -> None:
    assert_exit_2(
        hero("report", tmp_path / "none", "--out", tmp_path / "x.html"),
        f"{tmp_path / 'none'}: no such folder",
    )


@pytest.mark.parametrize(
    ("old", "new", "tensor"),
    [
        ("hidden_size = 64", "hidden_size = 32", "embed_tokens.weight has the shape [512, 64], expected [512, 32]"),
        ('kind = "hero"', 'kind = "baseline"', "mlp.gate.weight has the shape [8, 72], expected [8, 64]"),
        ("num_experts = 8", "num_experts = 16", "mlp.gate.weight has the shape [8, 64], expected [16, 64]"),
        ("num_hidden_layers = 3", "num_hidden_layers = 4", "no tensor model.layers.3."),
        ("num_hidden_layers = 3", "num_hidden_layers = 2", "unexpected tensor"),
    ],
)  # fmt: skip
def test_weights_of_another_model(
    trained: Path, data: Path, tmp_path: Path, old: str, new: str, tensor: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint(trained, 2), folder)
    config = folder / "config.toml"
    assert f"\n{old}\n" in config.read_text()
    config.write_text(config.read_text().replace(f"\n{old}\n", f"\n{new}\n"))
    assert_exit_2(hero("eval", folder, "--data", data), str(folder), tensor, "weights of another model")
    assert_exit_2(hero("generate", folder, "--prompt", "a"), str(folder), tensor, "weights of another model")


def test_resume_from_another_model(trained: Path, data: Path, tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    run_hero(*training(other, data, {"model.moe_intermediate_size": 16, "train.steps": 2}))
    shutil.copytree(trained, run)
    shutil.rmtree(checkpoint(run, 2))
    shutil.copytree(checkpoint(other, 2), checkpoint(run, 2))
    before = folder_bytes(run)
    result = hero("train", "--run", run, "--resume")
    assert_exit_2(result, str(checkpoint(run, 2)), "expected", "the weights of another model")
    assert folder_bytes(run) == before


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("model.safetensors", ["model.safetensors"]),
        ("config.json", ["found neither config.json"]),
    ],
)
def test_incomplete_model_folder(
    trained: Path, data: Path, tmp_path: Path, name: str, parts: list[str]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint(trained, 2), folder)
    (folder / name).unlink()
    assert_exit_2(hero("eval", folder, "--data", data), str(folder), *parts)


def test_truncated_weights(trained: Path, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint(trained, 2), folder)
    cut(folder / "model.safetensors", 100_000)
    assert_exit_2(hero("eval", folder, "--data", data), str(folder / "model.safetensors"))


def test_evaluation_data_beyond_the_vocabulary(trained: Path, tmp_path: Path) -> None:
    write_megatron(tmp_path / "tokens", [[1, 2, 512, 3]])
    assert_exit_2(
        hero("eval", trained, "--data", tmp_path / "tokens"),
        str(tmp_path / "tokens.bin"),
        "document 0, token 2: id 512, expected 0 to 511",
    )


def test_evaluation_beyond_the_positions(trained: Path, data: Path) -> None:
    result = hero("eval", trained, "--data", data, "--sequence", 100_000)
    assert_exit_2(
        result, "--sequence: found 100000, expected at most 128, the model's max_position_embeddings"
    )


def test_rejects_export_of_settings_without_config_json_key(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_hero(*training(run, data, {"model.norm_topk_eps": 1e-3, "train.steps": 2}))
    assert_exit_2(
        hero("export", run, tmp_path / "out"), "model.norm_topk_eps: found 0.001, expected 1e-20 to export"
    )
    assert not list(tmp_path.glob("out*"))


def test_tokenizer_of_another_vocabulary(trained: Path, corpus: Path, tmp_path: Path) -> None:
    model = tmp_path / "big.model"
    run_hero("data", "tokenizer", "--input", corpus, "--vocab-size", 600, "--out", model, "--workers", 1)
    result = hero("generate", trained, "--prompt", "a", "--tokenizer", model)
    assert_exit_2(result, f"{model}: 600 tokens, expected at most the model's 512")


COMMAND_LINES: list[tuple[list[str], str]] = [
    ([], "subcommand"),
    (["data"], "subcommand"),
    (["train"], "--run"),
    (["train", "--run"], "--run"),
    (["train", "--run", "x", "--data"], "--data"),
    (["train", "--run", "x", "--config", "none.toml"], "none.toml"),
    (["eval", "x"], "--data"),
    (["eval", "x", "--data", "y", "--batch", "0"], "--batch"),
    (["generate", "x"], "--prompt"),
    (["generate", "x", "--prompt", "a", "--temperature", "hot"], "--temperature"),
    (["generate", "x", "--prompt", "a", "--top-p", "2"], "--top-p"),
    (["generate", "x", "--prompt", "a", "--frequency", "2"], "--frequency"),
    (["report", "x"], "--out"),
    (["data", "tokenize", "--input", "x", "--tokenizer", "y"], "--out"),
]


@pytest.mark.parametrize(("words", "part"), COMMAND_LINES)
def test_command_line(tmp_path: Path, words: list[str], part: str) -> None:
    result = hero(*words, cwd=tmp_path)
    assert result.returncode == 2
    assert part in result.stderr.splitlines()[0]
    assert result.stdout == "" and not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["frob"], ["data", "frob"]])
def test_rejects_unknown_subcommands(words: list[str]) -> None:
    assert_exit_2(hero(*words), "frob")


@pytest.mark.parametrize("words", [[], ["train"], ["eval", "x", "--data", "y", "--batch", "0"]])
def test_command_line_errors_are_one_line(words: list[str]) -> None:
    assert_exit_2(hero(*words))


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("HERO_GEMM", "avx1024", "one of "),
        ("HERO_PLAIN", "2", "0 or 1\n"),
        ("HERO_PLAIN", "10", "0 or 1\n"),
        ("HERO_PLAIN", "true", "0 or 1\n"),
    ],
)
def test_environment_variables_of_the_kernels(
    data: Path, tmp_path: Path, variable: str, value: str, expected: str
) -> None:
    words = training(tmp_path / "run", data, {"train.dtype": "bf16"})
    result = hero(*words, variables={variable: value})
    assert_exit_2(result, f"{variable}: found {value}, expected {expected}")
    assert variable != "HERO_GEMM" or result.stderr.endswith("sse2\n")


def test_plain_kernels_are_the_reference_implementations(data: Path, tmp_path: Path) -> None:
    """HERO_PLAIN=1 changes the rounding of bf16 runs; 0 and an empty value are the default."""
    logs = {}
    for value in (None, "", "0", "1"):
        run = tmp_path / f"run-{value}"
        words = training(run, data, {"train.dtype": "bf16"})
        variables = {"HERO_PLAIN": value or ""} if value is not None else {}
        result = hero(*words, variables=variables)
        assert result.returncode == 0, result.stderr
        logs[value] = deterministic_metrics(run)
    assert logs[""] == logs["0"] == logs[None]
    assert logs["1"] != logs[None]
    losses, references = ([line["loss"] for line in logs[value]] for value in (None, "1"))
    assert losses == pytest.approx(references, rel=1e-2)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_loss_that_is_not_finite(data: Path, tmp_path: Path, dtype: str) -> None:
    run = tmp_path / "run"
    settings = {"optim.lr": 1e30, "train.dtype": dtype, "checkpoint.every": 1, "train.steps": 20}
    result = hero(*training(run, data, settings))
    assert result.returncode == 1
    done = len(metrics(run))
    assert 1 <= done < 20
    last = result.stderr.splitlines()[-1]
    assert re.match(rf"hero: {re.escape(str(run))}: step {done + 1}: the (loss|gradient of \S+) is ", last)
    assert last.endswith(f"; last good checkpoint: {checkpoint(run, done)}")
    assert checkpoint_names(run)[-1] == f"step-{done:08d}"


def test_loss_that_is_not_finite_before_a_checkpoint(data: Path, tmp_path: Path) -> None:
    result = hero(*training(tmp_path / "run", data, {"optim.lr": 1e30}))
    assert result.returncode == 1
    assert result.stderr.endswith("; last good checkpoint: none\n")


def test_run_folder_that_cannot_be_created(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "c.toml").write_text(toml(SMALL))
    for run in (tmp_path / "file" / "run", tmp_path / "file"):
        result = hero("train", "--config", tmp_path / "c.toml", "--data", data, "--run", run)
        assert result.returncode == 1
        assert result.stderr == f"hero: {run}: cannot create the folder: Not a directory\n"
