"""Branches: a new run that continues from another run's checkpoint."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hero_moe.report.run_files import load_run
from program import (
    assert_exit_2,
    checkpoint,
    checkpoint_names,
    deterministic_metrics,
    folder_bytes,
    hero,
    metrics,
    run_hero,
    start_hero,
    steps_logged,
    tensor_bytes,
    toml_value,
    training,
    wait_until,
)
from ranks import run_ranks_checked, start

STABLE: dict[str, Any] = {
    "router.kind": "hero",
    "router.balance": "global",
    "router.balance_loss": 0.01,
    "train.dtype": "fp64",
    "train.micro_batch": 1,
    "train.steps": 12,
    "train.spike_skip": 1000,
    "optim.schedule": "wsd",
    "optim.decay_steps": 2,
    "checkpoint.every": 4,
}


@pytest.fixture(scope="module")
def stable(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 steps, a decay in the last two, checkpoints at 4, 8 and 12; never changed."""
    run = tmp_path_factory.mktemp("stable") / "run"
    run_hero(*training(run, data, STABLE))
    return run


def branch(stable: Path, run: Path, *words: Any, step: str = "@4") -> list[Any]:
    return ["train", "--branch", f"{stable}{step}", "--run", run, *words]


def test_without_changes_it_repeats_the_parent(stable: Path, tmp_path: Path) -> None:
    """Loss, gradient norm and all tensors; and the parent stays as it is."""
    before = folder_bytes(stable)
    run = tmp_path / "run"
    result = run_hero(*branch(stable, run))
    assert f"branching from {checkpoint(stable, 4)} after step 4" in result.stderr
    assert folder_bytes(stable) == before
    assert [line["step"] for line in metrics(run)] == list(range(5, 13))
    assert deterministic_metrics(run) == deterministic_metrics(stable)[4:]
    for step in (4, 8, 12):
        assert folder_bytes(checkpoint(run, step)) == folder_bytes(checkpoint(stable, step))
    assert (run / "config.toml").read_bytes() == (stable / "config.toml").read_bytes()


def test_decay_at_another_length(data: Path, stable: Path, tmp_path: Path) -> None:
    """It is the run that had this length and decay from the start, and it records its parent."""
    run, whole = tmp_path / "run", tmp_path / "whole"
    run_hero(*branch(stable, run, "--train.steps=7", "--optim.decay_steps=3"))
    changed = {"train.steps": 7, "optim.decay_steps": 3}
    run_hero(*training(whole, data, STABLE | changed))
    assert deterministic_metrics(run) == deterministic_metrics(whole)[4:]
    assert tensor_bytes(run, 7) == tensor_bytes(whole, 7)
    (line,) = [json.loads(text) for text in (run / "starts.jsonl").read_text().splitlines()]
    manifest = (checkpoint(stable, 4) / "manifest.json").read_bytes()
    assert line["step"] == 4
    assert line["options"] == {
        "train.steps": {"from": 12, "to": 7},
        "optim.decay_steps": {"from": 2, "to": 3},
    }
    assert line["parent"] == {
        "checkpoint": str(checkpoint(stable, 4)),
        "step": 4,
        "manifest_sha256": hashlib.sha256(manifest).hexdigest(),
    }
    assert metrics(run)[0]["tokens"] == 5 * metrics(stable)[0]["tokens"]


def test_latest_and_damaged_checkpoints(stable: Path, tmp_path: Path) -> None:
    parent = Path(shutil.copytree(stable, tmp_path / "parent"))
    weights = checkpoint(parent, 12) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    before = folder_bytes(parent)
    result = run_hero(*branch(parent, tmp_path / "run", "--train.steps=9", "--optim.decay_steps=1", step=""))
    assert f"warning: {weights}: truncated" in result.stderr
    assert [line["step"] for line in metrics(tmp_path / "run")] == [9]
    assert folder_bytes(parent) == before
    assert_exit_2(hero(*branch(parent, tmp_path / "other", step="@12")), f"--branch: {weights}: truncated")
    # A moved checkpoint folder.
    moved = tmp_path / "saved"
    checkpoint(parent, 8).rename(moved)
    run_hero(*branch(moved, tmp_path / "third", "--train.steps=9", "--optim.decay_steps=1", step=""))
    assert deterministic_metrics(tmp_path / "third") == deterministic_metrics(tmp_path / "run")


def test_moved_checkpoint_with_later_phases(data: Path, stable: Path, tmp_path: Path) -> None:
    """The folder's name does not tell the step; a new phase begins after it."""
    moved = Path(shutil.copytree(checkpoint(stable, 8), tmp_path / "saved"))
    phases = toml_value([{"blend": [str(data)], "until_step": 9}, {"blend": [str(data), f"{data}-valid"]}])
    flags = ["--train.steps=10", "--optim.decay_steps=1", f"--data.phase={phases}"]
    run_hero(*branch(moved, tmp_path / "moved", *flags, step=""))
    run_hero(*branch(stable, tmp_path / "run", *flags, step="@8"))
    assert deterministic_metrics(tmp_path / "moved") == deterministic_metrics(tmp_path / "run")


def test_damaged_configuration_on_two_ranks(stable: Path, tmp_path: Path) -> None:
    """The newest intact checkpoint, as with one process."""
    parent = Path(shutil.copytree(stable, tmp_path / "parent"))
    (checkpoint(parent, 12) / "config.toml").write_text("[model")
    words = branch(parent, tmp_path / "run", "--train.steps=9", "--optim.decay_steps=1", step="")
    run_ranks_checked(words, 2, tmp_path / "log")
    assert [line["step"] for line in metrics(tmp_path / "run")] == [9]


def test_resume_of_a_branch(data: Path, stable: Path, tmp_path: Path) -> None:
    """Also before its own first checkpoint and without the parent."""
    parent = Path(shutil.copytree(stable, tmp_path / "parent"))
    run, whole = tmp_path / "run", tmp_path / "whole"
    run_hero(*branch(parent, whole, "--optim.lr=0.002"))
    shutil.copytree(whole, run)
    shutil.rmtree(parent)
    for left in (4, 8):
        for later in range(left + 4, 13, 4):
            shutil.rmtree(checkpoint(run, later))
        run_hero("train", "--run", run, "--resume")
        assert deterministic_metrics(run) == deterministic_metrics(whole)
        assert folder_bytes(checkpoint(run, 12)) == folder_bytes(checkpoint(whole, 12))
    starts = load_run(run, "run").starts
    assert [start.step for start in starts] == [4, 8]
    assert_exit_2(hero("train", "--run", run, "--resume", "--train.seed=1"), "train.seed: 1234 -> 1")


def test_parent_that_is_training(stable: Path, tmp_path: Path) -> None:
    """The lock of the parent is held."""
    with open(stable / "lock", "r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        run_hero(*branch(stable, tmp_path / "run", "--train.steps=5", "--optim.decay_steps=1"))
    assert checkpoint_names(tmp_path / "run") == ["step-00000004", "step-00000005"]


@pytest.mark.parametrize("layout", [["--parallel.data=2"], ["--parallel.pipeline=2"]])
def test_two_ranks(stable: Path, tmp_path: Path, layout: list[str]) -> None:
    run = tmp_path / "run"
    words = branch(stable, run, *layout, "--parallel.timeout=60")
    run_ranks_checked(words, 2, tmp_path / "log")
    for key in ("loss", "grad_norm", "lr"):
        want = [line[key] for line in metrics(stable)[4:]]
        assert [line[key] for line in metrics(run)] == pytest.approx(want, rel=1e-9), key
    # And back to one process.
    shutil.rmtree(checkpoint(run, 12))
    run_hero("train", "--run", run, "--resume", "--parallel.data=0", "--parallel.pipeline=1")
    want = [line["loss"] for line in metrics(stable)[4:]]
    assert [line["loss"] for line in metrics(run)] == pytest.approx(want, rel=1e-9)


def test_restarted_ranks_resume_the_branch(stable: Path, tmp_path: Path) -> None:
    """A launcher repeats the command, --branch included, with a restart count."""
    run = tmp_path / "run"
    words = branch(stable, run, "--parallel.timeout=60")
    run_ranks_checked(words, 2, tmp_path / "log")
    shutil.rmtree(checkpoint(run, 12))
    processes = start(words, 2, tmp_path / "again", TORCHELASTIC_RESTART_COUNT="1")
    assert [process.wait(120) for process in processes] == [0, 0], (tmp_path / "again.0").read_text()
    assert [line["step"] for line in metrics(run)] == list(range(5, 13))


def test_signal_before_the_first_own_checkpoint(stable: Path, tmp_path: Path) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    flags = ["--train.steps=400", "--checkpoint.every=0"]
    process = start_hero(*branch(stable, run, *flags))
    wait_until(process, lambda: steps_logged(run) > 2)
    process.kill()
    process.communicate()
    assert checkpoint_names(run) == ["step-00000004"]
    run_hero("train", "--run", run, "--resume", "--train.steps=9", "--optim.decay_steps=2")
    run_hero(*branch(stable, whole, "--train.steps=9", "--checkpoint.every=0"))
    assert deterministic_metrics(run) == deterministic_metrics(whole)


def test_errors(data: Path, stable: Path, tmp_path: Path) -> None:
    before = folder_bytes(stable)
    run = tmp_path / "run"
    valid = f"{data}-valid"
    for words, parts in [
        (branch(stable, run, step="@5"), ["no checkpoint of step 5", "expected one of 4, 8, 12"]),
        (branch(stable, run, step="@x"), [f"--branch: found no folder {stable}@x"]),
        (branch(stable / "tb", run, step=""), ["neither state.json nor checkpoints/", "--init-from"]),
        (branch(stable, run, "--resume"), ["--branch: found --resume too"]),
        (branch(stable, run, "--init-from", stable), ["--branch: found --init-from too"]),
        (branch(stable, run, "--data", valid), [f"--data: found {valid}, expected {data}"]),
        (
            branch(stable, run, "--train.seed=1"),
            [str(checkpoint(stable, 4) / "config.toml"), "train.seed: 1"],
        ),
        (branch(stable, run, step=""), ["train.steps: found 12, expected more than the step of"]),
        (branch(stable, run, "--train.steps=3"), ["train.steps: found 3, expected at least 4"]),
        (
            branch(stable, run, "--train.steps=5"),
            ["train.steps: found 5, expected 12", "--optim.decay_steps"],
        ),
        (branch(stable, run, "--train.steps=20", step=""), ["train.steps: found 20", "optim.schedule = "]),
    ]:
        assert_exit_2(hero(*words), *parts)
        assert not run.exists()
    run.mkdir()
    (run / "notes.txt").write_text("")
    assert_exit_2(
        hero(*branch(stable, run)), f"--run: found notes.txt in {run}, expected a new or empty folder"
    )
    empty = tmp_path / "empty"
    (empty / "checkpoints").mkdir(parents=True)
    assert_exit_2(
        hero(*branch(empty, tmp_path / "new", step="")), "--branch: found no finished checkpoint in"
    )
    assert folder_bytes(stable) == before
    same = branch(stable, tmp_path / "same", "--data", data, "--train.steps=5", "--optim.decay_steps=1")
    run_hero(*same)
