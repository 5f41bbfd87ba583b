"""The files beside a tokenizer.json and the EOS token that they name: hero_moe.data and `hero data tokenize` agree."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from data_files import train_bpe, write_rows
from hero_moe.data import DataError, load_tokenizer
from hero_moe.data.commands import main as data_main
from program import assert_exit_2, checkpoint, hero, run_hero, training

END, IM_END = 0, 2  # ids of <|endoftext|> and <|im_end|>


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(
        tmp_path_factory.mktemp("corpus") / "c.jsonl", [{"text": f"router {i}"} for i in range(200)]
    )


def tokenizer(folder: Path, **files: Any) -> Path:
    """A tokenizer folder whose tokenizer_config, config or generation_config are these objects."""
    train_bpe(folder)
    (folder / "tokenizer_config.json").unlink()
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def eos_of_hero(path: Path, corpus: Path, out: Path) -> int:
    run_hero("data", "tokenize", "--input", corpus, "--tokenizer", path, "--out", out, "--valid-fraction", 0)
    return int(json.loads(out.with_name(out.name + ".json").read_text())["eos_id"])


@pytest.mark.parametrize(
    ("files", "eos"),
    [
        ({}, END),
        ({"tokenizer_config": {"eos_token": "<|im_end|>"}}, IM_END),
        ({"tokenizer_config": {"eos_token": None}, "config": {"eos_token_id": 2}}, IM_END),
        ({"config": {"eos_token_id": 5}, "generation_config": {"eos_token_id": [2, 0]}}, IM_END),
        ({"config": {"eos_token_id": None}}, END),
    ],
)
def test_both_programs_find_the_same_eos_token(
    files: dict[str, Any], eos: int, corpus: Path, tmp_path: Path
) -> None:
    folder = tokenizer(tmp_path / "t", **files)
    assert load_tokenizer(str(folder)).eos_id == eos
    assert eos_of_hero(folder, corpus, tmp_path / "out") == eos


@pytest.mark.parametrize(
    ("files", "part"),
    [
        ({"tokenizer_config": {"eos_token": "<|none|>"}}, "eos_token: found"),
        ({"config": {"eos_token_id": True}}, "eos_token_id: found"),
        ({"config": {"eos_token_id": 100_000}}, "eos_token_id: found"),
        ({"generation_config": {"eos_token_id": []}}, "eos_token_id: found"),
    ],
)
def test_both_programs_reject_other_values(
    files: dict[str, Any], part: str, corpus: Path, tmp_path: Path
) -> None:
    folder = tokenizer(tmp_path / "t", **files)
    with pytest.raises(DataError, match=part):
        load_tokenizer(str(folder))
    words = ["--input", corpus, "--tokenizer", folder, "--out", tmp_path / "out"]
    assert_exit_2(hero("data", "tokenize", *words), "eos_token")


@pytest.mark.parametrize("python", [False, True], ids=["hero", "hero_moe.data"])
def test_the_copy_beside_token_files_has_the_same_eos_token(
    python: bool, corpus: Path, tmp_path: Path
) -> None:
    """An unrelated tokenizer_config.json in the folder of the token files does not count."""
    folder, out = (
        tokenizer(tmp_path / "t", tokenizer_config={"eos_token": "<|im_end|>"}),
        tmp_path / "data" / "mine",
    )
    words = ["tokenize", "--input", corpus, "--tokenizer", folder, "--out", out, "--valid-fraction", 0]
    if python:
        assert data_main([*map(str, words)]) == 0
    else:
        run_hero("data", *words)
    for name, key in (("tokenizer_config", "eos_token"), ("config", "eos_token_id")):
        (out.parent / f"{name}.json").write_text(json.dumps({key: "<|im_start|>" if name != "config" else 1}))
    copied = out.with_name("mine.tokenizer.json")
    assert load_tokenizer(str(copied)).eos_id == IM_END
    assert eos_of_hero(copied, corpus, tmp_path / "again") == IM_END


def test_sources_with_different_eos_tokens(corpus: Path, tmp_path: Path) -> None:
    """They have the same tokenizer.json, but their documents end differently."""
    for name, eos in (("a", "<|endoftext|>"), ("b", "<|im_end|>")):
        folder = tokenizer(tmp_path / f"t-{name}", tokenizer_config={"eos_token": eos})
        eos_of_hero(folder, corpus, tmp_path / name)
    words = training(tmp_path / "run", None, {"train.steps": 2}, "--data", tmp_path / "a", tmp_path / "b")
    assert_exit_2(hero(*words), f"{tmp_path}/b-train.bin: documents end with EOS token 2", "expected 0")


@pytest.mark.parametrize("order", [["chatml", "llama3"], ["llama3", "chatml", "deepseek"]], ids="-".join)
def test_the_first_chat_template_of_a_blend_counts(order: list[str], tmp_path: Path) -> None:
    bpe = train_bpe(tmp_path / "bpe")
    rows = [{"m": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]}] * 300
    chats = write_rows(tmp_path / "chats.jsonl", rows)
    for name in order:
        words = ["tokenize", "--input", chats, "--messages", "m", "--chat-template", name, "--tokenizer", bpe]
        assert data_main([*map(str, [*words, "--out", tmp_path / name, "--valid-fraction", 0])]) == 0
    run = tmp_path / "run"
    data = [tmp_path / name for name in order]
    run_hero(*training(run, None, {"train.steps": 2, "checkpoint.every": 1}, "--data", *data))
    template = (tmp_path / f"{order[0]}.chat_template.jinja").read_bytes()
    assert (checkpoint(run, 1) / "chat_template.jinja").read_bytes() == template


def test_ids_beyond_the_vocabulary_are_found_when_they_are_read(corpus: Path, tmp_path: Path) -> None:
    """Token files with metadata are not read as a whole at the start."""
    out = tmp_path / "mine"
    eos_of_hero(train_bpe(tmp_path / "bpe"), corpus, out)
    file = tmp_path / "mine-train.bin"
    tokens = bytearray(file.read_bytes())
    tokens[6:8] = b"\x60\xea"  # 60,000
    shutil.copytree(tmp_path, tmp_path / "damaged", ignore=lambda *_: {"bpe", "damaged"})
    (tmp_path / "damaged" / "mine-train.bin").write_bytes(tokens)
    run = tmp_path / "run"
    run_hero(*training(run, out, {"train.steps": 2, "checkpoint.every": 1}))
    message = f"{tmp_path}/damaged/mine-train.bin: document 0, token 3: id 60000, expected 0 to 383"
    steps = {"train.steps": 60, "train.sequence": 16}
    assert_exit_2(hero(*training(tmp_path / "other", tmp_path / "damaged" / "mine", steps)), message)
    assert_exit_2(hero("eval", run, "--data", tmp_path / "damaged" / "mine-train"), message)
