"""Token files that change between a checkpoint and the start that continues from it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hero_moe.report.comparability import _changes
from hero_moe.report.run_files import load_run
from program import HERO, assert_exit_2, checkpoint, folder_bytes, hero, metrics, run_hero, training

VALID: dict[str, Any] = HERO | {
    "train.steps": 4,
    "eval.every": 2,
    "eval.batches": 1,
    "checkpoint.every": 2,
    "checkpoint.keep_best": True,
    "optim.schedule": "constant",
}


@pytest.fixture
def own_data(data: Path, tmp_path: Path) -> Path:
    """A copy of the data that a test may change."""
    for file in data.parent.glob(f"{data.name}*"):
        shutil.copy(file, tmp_path)
    return tmp_path / data.name


def change(file: Path) -> None:
    """One token in the middle of the file is another."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def starts(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "starts.jsonl").read_text().splitlines()]


def recorded(run: Path, step: int) -> dict[str, Any]:
    files: dict[str, Any] = json.loads((checkpoint(run, step) / "state.json").read_text())["validation_files"]
    return files


def test_changed_validation_data(own_data: Path, tmp_path: Path) -> None:
    """A warning, once; the best checkpoint so far does not count anymore."""
    run, tokens = tmp_path / "run", Path(f"{own_data}-valid.bin")
    run_hero(*training(run, own_data, VALID))
    before = recorded(run, 4)
    assert set(before) == {f"{own_data}-valid.{kind}" for kind in ("bin", "idx")}
    assert json.loads((run / "best.json").read_text())["step"] == 4
    words = ["train", "--run", run, "--resume"]
    same = run_hero(*words, "--train.steps=6")
    assert "warning" not in same.stderr and "changed_validation" not in starts(run)[1]
    change(tokens)
    flags = ["--train.steps=8", "--optim.lr=0.3"]
    result = run_hero(*words, *flags)
    digest = before[str(tokens)]
    (line,) = [text for text in result.stderr.splitlines() if text.startswith("warning: ")]
    assert line.startswith(f"warning: {tokens}: found {digest['bytes']} bytes with sha256 ")
    expected = f"expected {digest['bytes']} bytes with sha256 {digest['sha256']}"
    assert f", {expected}: from step 7 on, valid_loss is that of other validation data" in line
    assert starts(run)[2]["changed_validation"] == [str(tokens)]
    assert starts(run)[2]["changed_data"] == []
    assert recorded(run, 8)[str(tokens)] != digest
    # The learning rate is too large, but the losses before are of other data.
    losses = {line["step"]: line["valid_loss"] for line in metrics(run) if "valid_loss" in line}
    assert losses[8] > losses[6] and json.loads((run / "best.json").read_text())["step"] == 8
    assert "warning" not in run_hero(*words, "--train.steps=10").stderr
    assert [start.changed_validation for start in load_run(run, "run").starts] == [(), (), (str(tokens),), ()]
    assert _changes(load_run(run, "run").starts[2]).endswith(f", {tokens.name} replaced")


def test_other_validation_data_is_an_option(own_data: Path, data: Path, tmp_path: Path) -> None:
    """Other files are not changed files; a file that is used again later is compared with itself."""
    run = tmp_path / "run"
    run_hero(*training(run, own_data, VALID))
    words = ["train", "--run", run, "--resume"]
    other = run_hero(*words, "--train.steps=6", f"--eval.data=other={data}")
    assert "warning" not in other.stderr and set(recorded(run, 6)) == {
        f"{data}-valid.{kind}" for kind in ("bin", "idx")
    }
    # Without validation the record stays.
    run_hero(*words, "--train.steps=7", "--eval.every=0", "--checkpoint.keep_best=false")
    assert recorded(run, 7) == recorded(run, 6)


def test_branch(own_data: Path, tmp_path: Path) -> None:
    """Changed validation data warn; changed training data are an error without --data-changed."""
    parent = tmp_path / "parent"
    run_hero(*training(parent, own_data, VALID))
    words = ["train", "--branch", f"{parent}@2"]
    change(Path(f"{own_data}-valid.bin"))
    result = run_hero(*words, "--run", tmp_path / "warned")
    assert f"warning: {own_data}-valid.bin: found " in result.stderr
    assert starts(tmp_path / "warned")[0]["changed_validation"] == [f"{own_data}-valid.bin"]
    tokens = Path(f"{own_data}-train.bin")
    change(tokens)
    before = folder_bytes(parent)
    rejected = hero(*words, "--run", tmp_path / "run")
    assert_exit_2(rejected, f"{tokens}: found ", "restore the file, or pass --data-changed to continue")
    assert not (tmp_path / "run").exists()
    result = run_hero(*words, "--run", tmp_path / "run", "--data-changed")
    assert f"{tmp_path}/run: from step 3: {tokens}: found " in result.stderr
    (line,) = starts(tmp_path / "run")
    assert line["changed_data"] == [str(tokens)] and line["parent"]["step"] == 2
    assert [line["step"] for line in metrics(tmp_path / "run")] == [3, 4]
    assert folder_bytes(parent) == before
    run_hero("train", "--run", tmp_path / "run", "--resume", "--train.steps=6")
    new = [*training(tmp_path / "new", own_data, VALID), "--data-changed"]
    assert_exit_2(hero(*new), "--data-changed: found neither --resume nor --branch, expected one of them")
