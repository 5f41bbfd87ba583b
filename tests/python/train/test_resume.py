"""Resume: a run in two halves ends with the bytes of one without interruption."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from program import (
    DEEPSEEK,
    ENVIRONMENT,
    HERO,
    assert_exit_2,
    assert_resumes_alike,
    assert_same_outcome,
    checkpoint,
    checkpoint_names,
    deterministic_metrics,
    folder_bytes,
    hero,
    metrics,
    run_hero,
    tensor_bytes,
    training,
)

VARIANTS: dict[str, dict[str, Any]] = {
    "bf16": HERO,
    "fp32": HERO | {"train.dtype": "fp32"},
    "two threads": HERO | {"train.threads": 2},
    "deepseek, sigmoid, moving bias": HERO | DEEPSEEK,
    "global balance": {"router.balance": "global", "router.balance_loss": 0.1},
    "gradient accumulation": HERO | {"train.micro_batch": 1, "train.global_batch": 3},
    "recompute": HERO | {"train.recompute": True},
    "jitter": HERO | {"router.jitter": 0.1},
    "capacity": HERO | {"router.capacity_factor": 1.0},
    "documents": HERO | {"train.document_mask": True, "train.document_positions": True},
    "gradient through the history": HERO | {"router.detach": False, "router.history": "global"},
    "stages, coupling loss, z-loss": HERO
    | {"router.stages": 2, "router.coupling_loss": 1e-2, "router.z_loss": 1e-3},
}
GPU: dict[str, dict[str, Any]] = {
    "gpu": {},
    "gpu, deepseek": DEEPSEEK,
    "gpu, jitter and recompute": {"router.jitter": 0.1, "train.recompute": True},
    "gpu, recorded": {"train.cuda_graph": True},
    "gpu, documents": {"train.document_mask": True, "train.document_positions": True},
}
VARIANTS |= {name: HERO | {"train.device": "cuda"} | settings for name, settings in GPU.items()}
NO_GPU = pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no GPU")


@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=NO_GPU if name in GPU else ()) for name in VARIANTS]
)
def test_resume_in_the_middle(data: Path, tmp_path: Path, variant: str) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    settings = VARIANTS[variant] | {"checkpoint.every": 3}
    run_hero(*training(whole, data, settings))
    assert_resumes_alike(whole, halves, 6)
    assert tensor_bytes(whole, 3) != tensor_bytes(whole, 6)


def test_tensorboard_log_has_no_repeats_after_resume(data: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    run_hero(*training(run, data, {"checkpoint.every": 4}))
    shutil.rmtree(checkpoint(run, 6))
    run_hero("train", "--run", run, "--resume")
    board = EventAccumulator(str(run / "tb"), size_guidance={"scalars": 0})
    board.Reload()
    assert [e.step for e in board.Scalars("loss/total")] == [1, 2, 3, 4, 5, 6]


def test_auto_without_gpu_is_the_cpu(
    finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` without a GPU, and a GPU-only graph option, are bit-identical, also on resume."""
    monkeypatch.setitem(ENVIRONMENT, "CUDA_VISIBLE_DEVICES", "")
    run = tmp_path / "run"
    run_hero(
        *training(run, data, HERO | {"train.device": "auto", "train.cuda_graph": True, "checkpoint.every": 2})
    )
    assert_same_outcome(run, finished, 6)
    shutil.rmtree(checkpoint(run, 6))
    run_hero("train", "--run", run, "--resume", "--train.device=cpu", "--train.cuda_graph=false")
    assert_same_outcome(run, finished, 6)


def test_resume_without_a_run_starts_one(copy: Path, data: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    run_hero(*training(fresh, data, HERO | {"checkpoint.every": 2}, "--resume"))
    assert_same_outcome(fresh, copy, 6)


def test_resume_after_removing_a_corrupt_checkpoint(copy: Path, finished: Path) -> None:
    """Removing the checkpoint named in the message and resuming gives the same bytes."""
    shutil.rmtree(checkpoint(copy, 6))
    run_hero("train", "--run", copy, "--resume")
    assert_same_outcome(copy, finished, 6)


def test_resume_before_the_first_checkpoint_reads_the_same_data(
    finished: Path, data: Path, tmp_path: Path
) -> None:
    """As after a crash: only the start is recorded."""
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.rmtree(run / "checkpoints")
    run_hero("train", "--run", run, "--resume")
    assert_same_outcome(run, finished, 6)


def test_a_rejected_resume_keeps_damaged_checkpoints(copy: Path) -> None:
    weights = checkpoint(copy, 6) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    before = folder_bytes(copy)
    assert_exit_2(hero("train", "--run", copy, "--resume", "--train.seed=7"), "train.seed: 1234 -> 7")
    assert folder_bytes(copy) == before
    result = run_hero("train", "--run", copy, "--resume")
    assert f"{weights}: truncated" in result.stderr and "step-00000006.damaged" in result.stderr


def test_finished_run_is_unchanged(copy: Path) -> None:
    before = folder_bytes(copy)
    for flags in ([], ["--optim.lr=0.5"]):
        result = run_hero("train", "--run", copy, "--resume", *flags)
        assert f"{copy}: all 6 steps are done, nothing to do" in result.stderr
        assert folder_bytes(copy) == before


def test_steps_may_grow(copy: Path, finished: Path) -> None:
    """With optim.decay_steps, the learning rates of completed steps do not depend on train.steps."""
    flags = ["--train.steps=8", "--optim.decay_steps=4", "--checkpoint.every=0"]
    run_hero("train", "--run", copy, "--resume", *flags)
    assert deterministic_metrics(copy)[:6] == deterministic_metrics(finished)
    assert [line["step"] for line in metrics(copy)] == list(range(1, 9))
    assert checkpoint_names(copy)[-1] == "step-00000008"
    assert "steps = 8\n" in (copy / "config.toml").read_text()


def test_default_warmup_of_a_short_run(data: Path, tmp_path: Path) -> None:
    """It is at most train.steps and part of the run, also if the run is extended."""
    run = tmp_path / "run"
    words = training(run, data, HERO)
    config = run.with_suffix(".toml")
    config.write_text(config.read_text().replace("optim.warmup_steps = 2\n", ""))
    run_hero(*words)
    assert "\nwarmup_steps = 6\n" in (run / "config.toml").read_text()
    run_hero(*words, "--resume", "--train.steps=8")
    assert "\nwarmup_steps = 6\n" in (run / "config.toml").read_text()


def test_recompute_is_bit_identical(data: Path, tmp_path: Path) -> None:
    runs = {recompute: tmp_path / str(recompute) for recompute in (False, True)}
    for recompute, run in runs.items():
        run_hero(*training(run, data, HERO | DEEPSEEK | {"train.recompute": recompute, "router.jitter": 0.1}))
    assert_same_outcome(runs[True], runs[False], 6)


def test_accumulation_is_independent_of_micro_batch_size(data: Path, tmp_path: Path) -> None:
    """Micro-batches of 1, 2 or 4 give the same losses in fp32 up to summation order. The balance loss is per
    sequence, so it does not depend on the micro-batch size; neither does the jitter noise."""
    settings = HERO | {
        "train.dtype": "fp32",
        "train.global_batch": 4,
        "router.balance": "sequence",
        "router.balance_loss": 0.1,
        "router.jitter": 0.1,
        "optim.lr": 3e-3,
    }
    losses = {}
    for micro in (4, 2, 1):
        run = tmp_path / str(micro)
        run_hero(*training(run, data, settings | {"train.micro_batch": micro}))
        losses[micro] = [line["loss"] for line in metrics(run)]
    assert losses[2] == pytest.approx(losses[4], rel=2e-6)
    assert losses[1] == pytest.approx(losses[4], rel=2e-6)
    assert losses[4][-1] < losses[4][0] - 0.2
