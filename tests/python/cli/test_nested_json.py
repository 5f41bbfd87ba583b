"""A million nested brackets in each kind of JSON file that the program reads: exit status 2 and one line.
(`hero logits --tokens`, config.json of models and HTTP bodies: test_model_errors.py, test_bad_model_folders.py
and test_serve_http.py.)"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from program import assert_exit_2, checkpoint, hero

NESTED = b"[" * 1_000_000
LIMIT = "found values nested deeper than 100 levels"


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_run, tmp_path / "run"))


@pytest.fixture
def tokens(data: Path, tmp_path: Path) -> Path:
    """A copy of the token files."""
    for file in data.parent.glob(f"{data.name}[-.]*"):
        shutil.copy(file, tmp_path / file.name)
    return tmp_path / data.name


def safetensors_header(path: Path) -> None:
    header = b'{"a": ' + NESTED
    path.write_bytes(struct.pack("<Q", len(header)) + header)


def json_file(path: Path) -> None:
    path.write_bytes(NESTED)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("config.json", json_file),
        ("model.safetensors", safetensors_header),
        ("model.safetensors.index.json", json_file),
    ],
)
def test_model_folder(
    run: Path, data: Path, tmp_path: Path, name: str, write: Callable[[Path], None]
) -> None:
    folder = checkpoint(run, 2)
    (folder / "manifest.json").unlink()  # the file would not match it
    (folder / "config.toml").unlink()  # is read instead of config.json
    if name.endswith("index.json"):
        (folder / "model.safetensors").unlink()
    write(folder / name)
    assert_exit_2(hero("eval", folder, "--data", data), str(folder / name), LIMIT)
    assert_exit_2(hero("export", folder, tmp_path / "out"), str(folder / name), LIMIT)


def test_tokenizer_json(corpus: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(b'{"model": ' + NESTED)
    result = hero("data", "tokenize", "--input", corpus, "--tokenizer", file, "--out", tmp_path / "out")
    assert_exit_2(result, str(file), LIMIT)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_rows(data: Path, run: Path, tmp_path: Path, name: str) -> None:
    import gzip

    file = tmp_path / name
    file.write_bytes(gzip.compress(NESTED) if name.endswith(".gz") else NESTED)
    words = ["data", "tokenize", "--input", file, "--tokenizer", f"{data}.model", "--out", tmp_path / "out"]
    assert_exit_2(hero(*words), f"{file}: line 1: {LIMIT}")
    assert_exit_2(hero(*words, "--skip-invalid"), "no text found")
    result = hero("analyze", run, "--data", file, "--out", tmp_path / "analysis", "--numbers-only")
    assert_exit_2(result, f"{file}:1: {LIMIT}")


def test_token_file_metadata(tokens: Path) -> None:
    card = tokens.with_name(tokens.name + ".json")
    card.write_bytes(b'{"format": "hero token files 1", "splits": ' + NESTED)
    assert_exit_2(hero("data", "info", tokens), f"{card}: {LIMIT}")


def test_metrics(run: Path) -> None:
    """A damaged line: it is removed, the rest of the run is the same."""
    file = run / "metrics.jsonl"
    content = file.read_bytes()
    file.write_bytes(NESTED + b"\n" + content)
    result = hero("train", "--run", run, "--resume", "--train.steps=3")
    assert result.returncode == 0, result.stderr
    assert f"warning: {file}: removed 1 damaged lines, the first is line 1" in result.stderr
    assert file.read_bytes().startswith(content)
