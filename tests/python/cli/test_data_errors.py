"""Invalid token files, texts and tokenizers: exit status 2 and one line with the file, the byte or key, the
value found and the value expected."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from program import (
    assert_exit_2,
    checkpoint,
    folder_bytes,
    hero,
    metrics,
    run_hero,
    training,
    write_megatron,
)


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
    trained_run: Path,
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
        result = hero("eval", trained_run, "--data", prefix)
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


def test_evaluation_with_another_tokenizer(
    trained_run: Path, data: Path, corpus: Path, tmp_path: Path
) -> None:
    """Rejected before the first data set is evaluated, like by `hero analyze`."""
    model, other = tmp_path / "other.model", tmp_path / "other"
    run_hero("data", "tokenizer", "--input", corpus, "--vocab-size", 400, "--out", model, "--workers", 1)
    run_hero("data", "tokenize", "--input", corpus, "--tokenizer", model, "--out", other, "--workers", 1)
    result = hero("eval", trained_run, "--data", data, other)
    assert_exit_2(result, f"{other}-valid.bin ({other}.model): different tokenizer than {trained_run}")
    assert result.stdout == ""


def test_existing_token_files(data: Path, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "set"
    words = [
        "data",
        "tokenize",
        "--input",
        corpus,
        "--tokenizer",
        f"{data}.model",
        "--out",
        out,
        "--workers",
        1,
    ]
    run_hero(*words)
    before = folder_bytes(tmp_path)
    assert_exit_2(hero(*words, "--seed", 2), f"{out}-train.bin: exists", "--overwrite")
    assert folder_bytes(tmp_path) == before
    run_hero(*words, "--seed", 2, "--overwrite")
    for seed in (-1, 2**64, "1e3"):
        assert_exit_2(
            hero(*words, "--seed", seed, "--overwrite"), f"--seed: found {seed}, expected 0 to {2**64 - 1}"
        )
    assert folder_bytes(tmp_path) != before


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


def test_tokenizer_output_is_checked_before_training(corpus: Path, tmp_path: Path) -> None:
    words = ["data", "tokenizer", "--input", corpus, "--vocab-size", 400, "--out"]
    assert_exit_2(hero(*words, tmp_path), f"--out {tmp_path}: found a folder, expected a file")
    file = tmp_path / "file"
    file.touch()
    assert_exit_2(hero(*words, file / "x.model"), str(file / "x.model"), f"folder {file}")


@pytest.mark.parametrize(
    ("size", "part"), [(100, "expected 262 to"), (100000, "too few different words, expected at most")]
)
def test_vocabulary_size(corpus: Path, tmp_path: Path, size: int, part: str) -> None:
    result = hero("data", "tokenizer", "--input", corpus, "--vocab-size", size, "--out", tmp_path / "x.model")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith(f"hero: --vocab-size {size}: ") and part in result.stderr
    assert not (tmp_path / "x.model").exists()
