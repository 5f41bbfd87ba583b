"""Run folders and command lines that the report rejects with exit status 2 and one line with the file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import MakeRun, edit_lines
from hero_moe.report import __main__ as report


def break_line(lines: list[str]) -> list[str]:
    return [*lines[:4], '{"step": 5, "tok\n', *lines[5:]]


def replace_in_line(old: str, new: str) -> Callable[[list[str]], list[str]]:
    return lambda lines: [*lines[:4], re.sub(old, new, lines[4], count=1), *lines[5:]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (break_line, "metrics.jsonl:5: invalid line"),
        (
            lambda lines: [*lines[:4], "[" * 1_000_000 + "\n"],
            "metrics.jsonl:5: invalid line (found values nested too deeply)",
        ),
        (lambda lines: [*lines[:4], "[1]\n"], "metrics.jsonl:5: found list, expected one JSON object"),
        (
            lambda lines: [*lines[:4], lines[2]],
            "metrics.jsonl:5: step: found 3 after 4, expected ascending steps",
        ),
        (replace_in_line('"lm_loss": [^,]*', '"lm_loss": "low"'), 'metrics.jsonl:5: lm_loss: found "low"'),
        (replace_in_line('"loss": [^,]*, ', ""), "metrics.jsonl:5: loss: found nothing"),
        (
            replace_in_line('"loss": [^,]*, ', f'"loss": -1{"0" * 400}, '),
            "metrics.jsonl:5: loss: found an integer of 401 digits, expected a double",
        ),
        (
            replace_in_line('"rho": \\[null', f'"rho": [1{"0" * 400}'),
            "metrics.jsonl:5: layers.rho: found an integer of 401 digits, expected a double",
        ),
        (
            replace_in_line('"step_ms"', f'"norms": {{"grad_norm": {{"head": 1{"0" * 400}}}}}, "step_ms"'),
            "metrics.jsonl:5: norms.grad_norm.head: found an integer of 401 digits, expected a double",
        ),
        (
            replace_in_line('"step_ms"', '"norms": {"max_router_logit": [1.5, "2"]}, "step_ms"'),
            'metrics.jsonl:5: norms.max_router_logit: found "2", expected a number or null',
        ),
        (
            replace_in_line('"tokens": [^,]*, ', f'"tokens": {2**63}, '),
            f"metrics.jsonl:5: tokens: found {2**63}, expected an integer of 64 bits",
        ),
        (
            replace_in_line('"tokens": [^,]*, ', ""),
            "metrics.jsonl:5: tokens: found nothing, expected an integer",
        ),
        (
            replace_in_line('"rho": \\[null', '"rho": [null, null'),
            "metrics.jsonl:5: layers.rho: found 7 values",
        ),
        (lambda lines: [], "metrics.jsonl: found no complete line"),
    ],
)
def test_rejects_invalid_metrics(
    tmp_path: Path,
    make_run: MakeRun,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[list[str]], list[str]],
    message: str,
) -> None:
    run = make_run("run", steps=8)
    edit_lines(run / "metrics.jsonl", change)
    assert_rejected([str(run)], tmp_path, capsys, str(run / message))


def assert_rejected(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], message: str
) -> None:
    assert report.main([*runs, "--out", str(tmp_path / "page.html")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.toml", None, "config.toml: cannot be read"),
        ("config.toml", "[model\n", "config.toml: invalid TOML"),
        ("metrics.jsonl", None, "metrics.jsonl: cannot be read"),
        (
            "routing.jsonl",
            '{"step": 1, "expert_share": [[0.1], [0.1, 0.2]]}\n',
            "routing.jsonl:1: expert_share",
        ),
        ("starts.jsonl", '{"step": 2}\n', "starts.jsonl:1: invalid line"),
        ("eval.json", "{", "eval.json: invalid JSON"),
        ("eval.json", "[" * 1_000_000, "eval.json: invalid JSON (found values nested too deeply)"),
        ("eval.json", '{"datasets": 3}', "eval.json: datasets"),
    ],
)
def test_rejects_missing_or_invalid_files(
    tmp_path: Path,
    make_run: MakeRun,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: str | None,
    message: str,
) -> None:
    run = make_run("run", steps=3)
    (run / name).unlink(missing_ok=True)
    if content is not None:
        (run / name).write_text(content)
    assert_rejected([str(run)], tmp_path, capsys, str(run / message))


def test_rejects_missing_and_empty_folders(
    tmp_path: Path, make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run("run", steps=3)
    (tmp_path / "empty").mkdir()
    assert_rejected(
        [str(run), str(tmp_path / "none")], tmp_path, capsys, "none: no such folder, expected a run folder"
    )
    assert_rejected(
        [str(run), str(tmp_path / "empty")], tmp_path, capsys, "empty/config.toml: cannot be read"
    )


def test_program(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("run", steps=3)
    program = [sys.executable, "-m", "hero_moe.report"]
    environment = os.environ | {"PYTHONPATH": str(Path(report.__file__).parents[2])}
    for arguments, status, lines in (
        ([run, "--out", tmp_path / "page.html"], 0, 0),
        ([run], 2, 1),
        ([run, "--out", tmp_path / "none/page.html"], 2, 1),
    ):
        done = subprocess.run(
            [*program, *map(str, arguments)], env=environment, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr.count("\n"), done.stdout) == (status, lines, "")
