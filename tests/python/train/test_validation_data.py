"""The data sets of a validation: names, errors, options without effect."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from program import (
    HERO,
    assert_exit_2,
    hero,
    metrics,
    run_hero,
    training,
    write_megatron,
)

VALID = HERO | {"eval.every": 2, "eval.batches": 3}


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
