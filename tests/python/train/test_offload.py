"""optim.offload_folder: the optimizer's state in memory-mapped files changes no result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from program import (
    HERO,
    assert_exit_2,
    assert_same_outcome,
    checkpoint,
    hero,
    metrics,
    run_hero,
    tensor_bytes,
    training,
)
from ranks import run_ranks_checked
from small_disk import mounted_disk

SETTINGS = HERO | {"train.steps": 4, "checkpoint.every": 2, "checkpoint.asynchronous": False}


def offloaded(folder: Path) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    return {"optim.offload_folder": str(folder)}


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "fp64"])
def test_same_model(data: Path, tmp_path: Path, dtype: str, kind: str) -> None:
    settings = SETTINGS | {"train.dtype": dtype, "optim.kind": kind, "optim.clip_norm": 0.1}
    run_hero(*training(tmp_path / "memory", data, settings))
    files = tmp_path / "files"
    run_hero(*training(tmp_path / "disk", data, settings | offloaded(files)))
    assert_same_outcome(tmp_path / "memory", tmp_path / "disk", 4)
    assert not list(files.iterdir())


@pytest.mark.parametrize("layout", [{}, {"parallel.expert": 2}, {"parallel.pipeline": 2}])
def test_same_model_on_two_ranks(data: Path, tmp_path: Path, layout: dict[str, int]) -> None:
    settings = SETTINGS | layout | {"train.global_batch": 4, "model.num_hidden_layers": 4}
    shards = []
    for name, options in ("memory", {}), ("disk", offloaded(tmp_path / "files")):
        run_ranks_checked(training(tmp_path / name, data, settings | options), 2, tmp_path / f"{name}-log")
        files = sorted(checkpoint(tmp_path / name, 4).glob("*.safetensors"))
        shards.append({file.name: file.read_bytes() for file in files})
    assert shards[0] == shards[1] and len(shards[0]) >= 3
    losses = [[line["loss"] for line in metrics(tmp_path / name)] for name in ("memory", "disk")]
    assert losses[0] == losses[1]


def test_changes_on_resume(data: Path, tmp_path: Path) -> None:
    schedule = {"optim.decay_steps": 2}  # equal rates for any train.steps
    run_hero(*training(tmp_path / "whole", data, SETTINGS | schedule))
    run = tmp_path / "parts"
    run_hero(*training(run, data, SETTINGS | schedule | {"train.steps": 2}))
    files = [f"--{key}={value}" for key, value in offloaded(tmp_path / "files").items()]
    run_hero("train", "--run", run, "--resume", "--train.steps=3", *files)
    run_hero("train", "--run", run, "--resume", "--train.steps=4", "--optim.offload_folder=")
    assert tensor_bytes(run, 4) == tensor_bytes(tmp_path / "whole", 4)


def test_rejects(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    missing = hero(*training(run, data, SETTINGS | {"optim.offload_folder": str(tmp_path / "missing")}))
    assert_exit_2(missing, "optim.offload_folder", "missing", "No such file or directory")
    (tmp_path / "file").touch()
    file = hero(*training(run, data, SETTINGS | {"optim.offload_folder": str(tmp_path / "file")}))
    assert_exit_2(file, "optim.offload_folder", "Not a directory")
    copies = SETTINGS | {"checkpoint.asynchronous": True}
    assert_exit_2(
        hero(*training(run, data, copies | offloaded(tmp_path / "files"))),
        "checkpoint.asynchronous: found true, expected false with optim.offload_folder",
    )
    assert not run.exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path / "disk", "256k") as folder:
        yield folder


def test_full_disk(data: Path, tmp_path: Path, small_disk: Path) -> None:
    """The files have the size of the state, reserved before the first step."""
    result = hero(*training(tmp_path / "run", data, SETTINGS | offloaded(small_disk)))
    assert result.returncode == 1
    assert "optim.offload_folder: cannot reserve" in result.stderr
    assert "No space left on device" in result.stderr
    assert result.stderr.rstrip().splitlines()[-1].startswith("hero: ")
