"""Invalid model folders, and data that does not fit a model: exit status 2 and one line with the file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from program import (
    assert_exit_2,
    checkpoint,
    folder_bytes,
    hero,
    run_hero,
    training,
    write_megatron,
)


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
def test_token_lists(trained_run: Path, tmp_path: Path, text: str, part: str) -> None:
    tokens = tmp_path / "tokens.json"
    tokens.write_text(text)
    result = hero("logits", trained_run, "--tokens", tokens, "--out", tmp_path / "out")
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
    trained_run: Path, data: Path, tmp_path: Path, old: str, new: str, tensor: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint(trained_run, 2), folder)
    config = folder / "config.toml"
    assert f"\n{old}\n" in config.read_text()
    config.write_text(config.read_text().replace(f"\n{old}\n", f"\n{new}\n"))
    (folder / "manifest.json").unlink()
    assert_exit_2(hero("eval", folder, "--data", data), str(folder), tensor, "weights of another model")
    assert_exit_2(hero("generate", folder, "--prompt", "a"), str(folder), tensor, "weights of another model")


def test_resume_from_another_model(trained_run: Path, data: Path, tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    run_hero(*training(other, data, {"model.moe_intermediate_size": 16, "train.steps": 2}))
    shutil.copytree(trained_run, run)
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
    trained_run: Path, data: Path, tmp_path: Path, name: str, parts: list[str]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint(trained_run, 2), folder)
    (folder / name).unlink()
    assert_exit_2(hero("eval", folder, "--data", data), str(folder), *parts)


def reading_commands(folder: Path, data: Path, out: Path) -> list[list[Any]]:
    """Commands that read the model in a folder."""
    tokens = out.with_suffix(".json")
    tokens.write_text("[[1, 2, 3]]")
    return [
        ["eval", folder, "--data", data],
        ["generate", folder, "--prompt", "a"],
        ["export", folder, out],
        ["logits", folder, "--tokens", tokens, "--out", out],
        ["diff", folder, folder],
        ["analyze", folder, "--out", out],
        ["serve", folder, "--port", 0],
        ["train", "--init-from", folder, "--data", data, "--run", out],
    ]


@pytest.mark.parametrize(
    ("name", "size", "found"),
    [
        ("model.safetensors", 100_000, "truncated: found 100000 bytes, expected "),
        ("optimizer.safetensors", 100_000, "truncated: found 100000 bytes, expected "),
        ("model.safetensors", None, "altered: found sha256 "),
        ("config.toml", None, "altered: found sha256 "),
    ],
)
def test_checkpoint_that_does_not_match_its_manifest(
    trained_run: Path, data: Path, tmp_path: Path, name: str, size: int | None, found: str
) -> None:
    """`size`: of the truncated file; None: one bit of its last byte is flipped."""
    folder, out = tmp_path / "model", tmp_path / "out"
    shutil.copytree(checkpoint(trained_run, 2), folder)
    file = folder / name
    if size:
        os.truncate(file, size)
    else:
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    for words in reading_commands(folder, data, out):
        assert_exit_2(hero(*words), f"{file}: {found}")
    assert not out.exists()


def test_checkpoint_without_optimizer_files(trained_run: Path, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint(trained_run, 2), folder)
    (folder / "optimizer.safetensors").unlink()
    run_hero("eval", folder, "--data", data)


def test_evaluation_data_beyond_the_vocabulary(trained_run: Path, tmp_path: Path) -> None:
    write_megatron(tmp_path / "tokens", [[1, 2, 512, 3]])
    assert_exit_2(
        hero("eval", trained_run, "--data", tmp_path / "tokens"),
        str(tmp_path / "tokens.bin"),
        "document 0, token 2: id 512, expected 0 to 511",
    )


def test_evaluation_beyond_the_positions(trained_run: Path, data: Path) -> None:
    result = hero("eval", trained_run, "--data", data, "--sequence", 100_000)
    assert_exit_2(
        result, "--sequence: found 100000, expected at most 128, the model's max_position_embeddings"
    )


def test_diff_beyond_the_positions_of_either_model(trained_run: Path, data: Path, tmp_path: Path) -> None:
    short = tmp_path / "short"
    settings = {"train.sequence": 16, "model.max_position_embeddings": 16}
    run_hero(*training(short, data, settings | {"train.steps": 2}))
    for length, models in ((129, [trained_run] * 2), (17, [trained_run, short]), (17, [short, trained_run])):
        tokens = tmp_path / "tokens.json"
        tokens.write_text(json.dumps([[1] * length]))
        expected = [f"found {length} ids", f"max_position_embeddings = {16 if short in models else 128}"]
        assert_exit_2(hero("diff", *models, "--tokens", tokens), *expected)
        assert_exit_2(hero("diff", *models, "--text", "\x01" * length), "--text", *expected)


def test_diff_of_an_empty_text(trained_run: Path) -> None:
    result = hero("diff", trained_run, trained_run, "--text", "")
    assert_exit_2(result, "--text: found no tokens, expected some text")


def test_rejects_export_of_settings_without_config_json_key(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_hero(*training(run, data, {"model.norm_topk_eps": 1e-3, "train.steps": 2}))
    assert_exit_2(
        hero("export", run, tmp_path / "out"), "model.norm_topk_eps: found 0.001, expected 1e-20 to export"
    )
    assert not list(tmp_path.glob("out*"))


def test_tokenizer_of_another_vocabulary(trained_run: Path, corpus: Path, tmp_path: Path) -> None:
    model = tmp_path / "big.model"
    run_hero("data", "tokenizer", "--input", corpus, "--vocab-size", 600, "--out", model, "--workers", 1)
    result = hero("generate", trained_run, "--prompt", "a", "--tokenizer", model)
    assert_exit_2(result, f"{model}: 600 tokens, expected at most the model's 512")
