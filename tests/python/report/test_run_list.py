"""Reading the runs of a command line: in one process and in several with the same result."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from conftest import MakeRun, edit_lines
from hero_moe.report import run_list
from hero_moe.report.json_lines import InputError
from hero_moe.report.run_files import Run
from hero_moe.report.run_list import load_runs


@pytest.fixture(autouse=True)
def several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_list, "PARALLEL_BYTES", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})


def columns(run: Run) -> dict[str, np.ndarray]:
    metrics = run.metrics
    return {"steps": metrics.steps, "tokens": metrics.tokens, **metrics.scalars, **metrics.layers}


def test_processes_read_the_same_in_the_same_order(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [make_run(f"run{i}", kind="hero" if i % 2 else "baseline", jitter=0.01 * i) for i in range(5)]
    several = load_runs(paths)
    monkeypatch.setattr(run_list, "PARALLEL_BYTES", 1 << 40)
    for run, expected in zip(several, load_runs(paths), strict=True):
        assert (run.name, run.path, run.config) == (expected.name, expected.path, expected.config)
        assert run.evaluations == expected.evaluations and run.starts == expected.starts
        values, wanted = columns(run), columns(expected)
        assert values.keys() == wanted.keys()
        for key, column in values.items():
            np.testing.assert_array_equal(column, wanted[key], err_msg=key)
    assert [run.name for run in several] == [f"run{i}" for i in range(5)]


def test_first_invalid_run_is_reported(make_run: MakeRun) -> None:
    paths = [make_run(f"run{i}") for i in range(4)]
    for path in (paths[2], paths[1]):
        edit_lines(path / "metrics.jsonl", lambda lines: [*lines[:1], "[1]\n"])
    with pytest.raises(InputError, match=r"run1/metrics.jsonl:2: found list, expected one JSON object"):
        load_runs(paths)


def test_no_runs() -> None:
    assert load_runs([]) == []


def die(path: Path, name: str) -> Run:
    os._exit(9)


def test_killed_process_is_one_line(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_list, "load_run", die)
    with pytest.raises(InputError, match="a process was killed, expected enough memory"):
        load_runs([make_run("a"), make_run("b")])
