"""The 13 benchmarks: scores of models whose scores are known, prompts as lm_eval's, one line for each mistake."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench_data
import pytest
from bench_models import Oracle, Uniform
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from hero_moe.bench import __main__ as command
from hero_moe.bench.benchmarks import BENCHMARKS, SUITE
from hero_moe.bench.data import subset
from hero_moe.bench.loading import Suite
from hero_moe.bench.models import Model, parse

PYTHON = Path(__file__).parents[2] / "python"
ROWS, PER_SUBJECT = 20, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with every subject."""
    folder = tmp_path_factory.mktemp("bench")
    suite = Suite(folder)
    subjects = {key: suite.subjects(benchmark) for key, benchmark in BENCHMARKS.items()}
    assert {key: len(names) for key, names in subjects.items() if names} == {
        "math": 7,
        "bbh": 27,
        "mmlu": 57,
        "cmmlu": 67,
    }
    bench_data.write_all(folder, subjects, ROWS, PER_SUBJECT)
    return folder


Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command, its models by name; returns its status and results.json."""

    def run(lms: dict[str, LM], *words: str, data: Path = folder) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(Model, "open", lambda self: lms[self.name])
        for name in lms:
            (tmp_path / "models" / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / "models" / name / "config.json").write_text("{}")
        paths = [str(tmp_path / "models" / name) for name in lms]
        out = tmp_path / "out"
        status = command.main(["--models", *paths, "--data-dir", str(data), "--out", str(out), *words])
        written = out / "results.json"
        return status, json.loads(written.read_text()) if written.is_file() else {}

    return run


def scores(results: dict[str, Any], name: str) -> dict[str, float]:
    return {key: value["score"] for key, value in results["models"][name]["scores"].items()}


def test_scores(run: Run, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An oracle has 100. The uniform model has chance exactly: its choices are equally likely, lm_eval takes the
    first, and the right one is each place equally often."""
    status, results = run({"none": Uniform(), "all": Oracle(folder)})
    assert status == 0
    assert list(results["benchmarks"]) == list(BENCHMARKS)
    assert set(scores(results, "all").values()) == {100.0}
    chance = {
        key: 100 / (5 if key == "mathqa" else min(4, b.choices[1])) if b.rows == "choice" else 0.0
        for key, b in BENCHMARKS.items()
    }
    assert scores(results, "none") == pytest.approx(chance | {"average": 220 / 13}, abs=1e-9)
    assert "| all − none " in capsys.readouterr().out
    sizes = {"math": 7 * PER_SUBJECT, "bbh": 27 * PER_SUBJECT, "mmlu": 57 * PER_SUBJECT, "cmmlu": 67 * PER_SUBJECT}
    assert {k: b["items"] for k, b in results["benchmarks"].items()} == dict.fromkeys(BENCHMARKS, ROWS) | sizes


def test_limit(run: Run, folder: Path) -> None:
    """Evenly spaced rows: the same for both models, of subjects in proportion."""
    keys = ["mathqa", "math", "mmlu", "lambada"]
    status, results = run({"all": Oracle(folder, 14), "same": Oracle(folder, 14)}, "--limit", "14", "--tasks", *keys)
    assert status == 0
    assert set(scores(results, "same").values()) == {100.0}
    assert {b["items"] for b in results["benchmarks"].values()} == {14}
    rows = bench_data.read(folder / "math.jsonl")
    subjects = [row["subject"] for row in subset(rows, 14)]
    assert sorted(map(subjects.count, set(subjects))) == [2] * 7
    assert subset(list(range(10)), 4) == [1, 3, 6, 8] and subset([1, 2], 5) == [1, 2]
