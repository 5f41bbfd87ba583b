"""Invalid command lines and environment variables: exit status 2. Runtime failures: exit status 1."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from program import (
    SMALL,
    assert_exit_2,
    checkpoint,
    checkpoint_names,
    deterministic_metrics,
    hero,
    metrics,
    toml,
    training,
)


def test_report_without_runs(tmp_path: Path) -> None:
    assert_exit_2(
        hero("report", tmp_path / "none", "--out", tmp_path / "x.html"),
        f"{tmp_path / 'none'}: no such folder",
    )


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
    name = checkpoint(run, done).name
    if done == 1:
        advice = f"none; no step after {name} had a finite loss: start a new run"
    else:
        advice = f"{checkpoint(run, done - 1)}; to continue from it, move {name} to another folder"
    assert f"; last good checkpoint: {advice}" in last
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
