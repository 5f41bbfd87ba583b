"""Resume: an interrupted run ends with the bytes of an uninterrupted one, however it was interrupted."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from program import (
    CONFIGS,
    DEEPSEEK,
    ENVIRONMENT,
    PROGRAM,
    assert_exit_2,
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

HERO = {"router.kind": "hero"}
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
    shutil.copytree(whole, halves)
    shutil.rmtree(checkpoint(halves, 6))
    run_hero("train", "--run", halves, "--resume")
    assert_same_outcome(halves, whole, 6)
    assert folder_bytes(checkpoint(halves, 6)) == folder_bytes(checkpoint(whole, 6))
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


# Long enough to be interrupted midway.
LONG = HERO | {"train.steps": 60, "model.num_hidden_layers": 2}


@pytest.fixture(scope="module")
def uninterrupted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    run_hero(*training(run, data, LONG))
    return run


def start(words: list[Any]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PROGRAM, *map(str, words)],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def wait_until(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    """Waits until `reached()` is true or the process has ended."""
    give_up = time.monotonic() + 120
    while process.poll() is None and not reached():
        assert time.monotonic() < give_up, "timed out after two minutes"
        time.sleep(0.001)


def steps_logged(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves(data: Path, tmp_path: Path, uninterrupted: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    process = start(training(run, data, LONG))
    wait_until(process, lambda: steps_logged(run) >= 5)
    process.send_signal(number)
    _, message = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    done = len(metrics(run))
    assert 5 <= done < 60
    assert checkpoint_names(run) == [f"step-{done:08d}"]
    last = message.splitlines()[-1]
    assert f"stopped by signal {int(number)} after step {done} of 60 and saved" in last
    assert "--resume" in last
    run_hero("train", "--run", run, "--resume")
    assert_same_outcome(run, uninterrupted, 60)


def test_repeated_signal_saves(data: Path, tmp_path: Path, uninterrupted: Path) -> None:
    """Some terminals and `timeout` send a signal twice."""
    run = tmp_path / "run"
    process = start(training(run, data, LONG))
    wait_until(process, lambda: steps_logged(run) >= 5)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.001)
    _, message = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT, message
    assert message.count("saving; press Ctrl-C again to stop without saving\n") == 1
    assert checkpoint_names(run) == [f"step-{len(metrics(run)):08d}"]
    run_hero("train", "--run", run, "--resume")
    assert_same_outcome(run, uninterrupted, 60)


def test_signal_between_micro_batches(data: Path, tmp_path: Path) -> None:
    """The step that a signal interrupts is discarded; the first one leaves a checkpoint of step 0."""
    settings = HERO | {"train.micro_batch": 1, "train.global_batch": 200, "train.steps": 2}
    whole, run = tmp_path / "whole", tmp_path / "run"
    run_hero(*training(whole, data, settings))
    process = start(training(run, data, settings))
    wait_until(process, lambda: (run / "metrics.jsonl").exists())
    process.send_signal(signal.SIGTERM)
    _, message = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, message
    assert "stopped by signal 15 after step 0 of 2 and saved" in message
    assert checkpoint_names(run) == ["step-00000000"]
    run_hero("train", "--run", run, "--resume")
    assert_same_outcome(run, whole, 2)


@pytest.mark.parametrize(
    ("saving", "kills"),
    [
        (False, 3),
        (True, 3),
        pytest.param(False, 30, marks=pytest.mark.long),
        pytest.param(True, 30, marks=pytest.mark.long),
    ],
)
def test_kill_at_any_moment(
    data: Path, tmp_path: Path, uninterrupted: Path, saving: bool, kills: int
) -> None:
    """`saving`: kills the process while it writes a checkpoint folder; otherwise at random times, including
    program start."""
    rng, run = random.Random(kills), tmp_path / "run"
    words = training(run, data, LONG | {"checkpoint.every": 1, "checkpoint.keep": 2}, "--resume")
    killed = unfinished = 0
    while killed < kills:
        before = steps_logged(run)
        process = start(words)
        if saving:
            wait_until(process, lambda at=before + rng.randint(1, 2): steps_logged(run) >= at)
            wait_until(process, lambda: any((run / "checkpoints").glob("*.tmp")))
            time.sleep(rng.uniform(0, 0.005))
        elif rng.random() < 0.3:
            time.sleep(rng.uniform(0, 0.5))
        else:
            wait_until(process, lambda at=before + 1: steps_logged(run) >= at)
            time.sleep(rng.uniform(0, 0.05))
        process.kill()
        process.communicate()
        if process.returncode == 0:  # it finished before the kill: start over
            assert_same_outcome(run, uninterrupted, 60)
            shutil.rmtree(run)
            continue
        assert process.returncode == -signal.SIGKILL
        killed += 1
        unfinished += any((run / "checkpoints").glob("*.tmp"))
    assert unfinished or not saving or kills < 30
    run_hero(*words)
    assert_same_outcome(run, uninterrupted, 60)
    assert checkpoint_names(run) == ["step-00000059", "step-00000060"]


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


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 6 steps with checkpoints at 2, 4 and 6; copied, never changed."""
    run = tmp_path_factory.mktemp("finished") / "run"
    run_hero(*training(run, data, HERO | {"checkpoint.every": 2}))
    return run


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_finished_run_is_unchanged(copy: Path) -> None:
    before = folder_bytes(copy)
    for flags in ([], ["--optim.lr=0.5"]):
        result = run_hero("train", "--run", copy, "--resume", *flags)
        assert f"{copy}: all 6 steps are done, nothing to do" in result.stderr
        assert folder_bytes(copy) == before


@pytest.mark.parametrize("given", ["flag", "file"])
def test_steps_may_not_end_before_the_checkpoint(copy: Path, tmp_path: Path, given: str) -> None:
    before = folder_bytes(copy)
    words: list[Any] = ["--train.steps=5"]
    if given == "file":
        words = ["--config", tmp_path / "shorter.toml"]
        words[1].write_text((copy / "config.toml").read_text().replace("\nsteps = 6\n", "\nsteps = 5\n"))
    result = hero("train", "--run", copy, "--resume", *words)
    assert_exit_2(result, f"train.steps: found 5, expected at least 6, the step of {checkpoint(copy, 6)}")
    assert folder_bytes(copy) == before


def test_resume_of_a_run_that_does_not_exist(tmp_path: Path) -> None:
    typo = tmp_path / "typo"
    assert_exit_2(hero("train", "--run", typo, "--resume"), f"{typo}: no such run to resume", "--data")
    assert not typo.exists()


def test_rejected_start_writes_nothing(data: Path, tmp_path: Path) -> None:
    """The corrected command starts the run."""
    run = tmp_path / "run"
    rejected = hero(*training(run, data, HERO, "--parallel.pipeline=2"))
    assert_exit_2(rejected, "parallel.pipeline: found 2, expected a divisor of the 1 process")
    assert not run.exists()
    run_hero(*training(run, data, HERO | {"train.steps": 1, "optim.warmup_steps": 1}))


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


def test_run_folder_in_use(copy: Path, data: Path) -> None:
    before = folder_bytes(copy)
    assert_exit_2(hero(*training(copy, data, HERO)), str(copy), "--resume")
    assert folder_bytes(copy) == before


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


def test_steps_may_grow(copy: Path, finished: Path) -> None:
    """With optim.decay_steps, the learning rates of completed steps do not depend on train.steps."""
    flags = ["--train.steps=8", "--optim.decay_steps=4", "--checkpoint.every=0"]
    run_hero("train", "--run", copy, "--resume", *flags)
    assert deterministic_metrics(copy)[:6] == deterministic_metrics(finished)
    assert [line["step"] for line in metrics(copy)] == list(range(1, 9))
    assert checkpoint_names(copy)[-1] == "step-00000008"
    assert "steps = 8\n" in (copy / "config.toml").read_text()


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("--model.hidden_size=32", "model.hidden_size: 64 -> 32"),
        ("--router.kind=baseline", 'router.kind: "hero" -> "baseline"'),
        ("--train.seed=1", "train.seed: 1234 -> 1"),
        ("--train.micro_batch=1", "train.micro_batch: 2 -> 1"),
        ("--train.sequence=32", "train.sequence: 64 -> 32"),
        ("--router.window=2", "router.window: 0 -> 2"),
        ("--router.balance_loss=0.5", "router.balance_loss: 0.001 -> 0.5"),
    ],
)
def test_rejects_different_configuration(copy: Path, flag: str, named: str) -> None:
    before = folder_bytes(copy)
    assert_exit_2(hero("train", "--run", copy, "--resume", flag), str(copy / "config.toml"), named)
    assert folder_bytes(copy) == before


def test_rejects_different_configuration_file(copy: Path) -> None:
    assert_exit_2(
        hero("train", "--config", CONFIGS / "small-qwen3.toml", "--run", copy, "--resume"),
        str(copy / "config.toml"),
        "model.num_experts: 8 -> 32",
    )


def test_rejects_different_data(copy: Path, data: Path) -> None:
    assert_exit_2(hero("train", "--run", copy, "--data", f"{data}-valid", "--resume"), "--data", str(data))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("name", "corrupt", "found"),
    [
        ("model.safetensors", flip, "altered"),
        ("optimizer.safetensors", halve, "truncated"),
        ("state.json", Path.unlink, "missing"),
        ("manifest.json", halve, "altered or truncated"),
    ],
)
def test_damaged_checkpoint_is_skipped(
    copy: Path, finished: Path, name: str, corrupt: Callable[[Path], None], found: str
) -> None:
    file = checkpoint(copy, 6) / name
    corrupt(file)
    result = run_hero("train", "--run", copy, "--resume")
    assert f"warning: {file}: {found}" in result.stderr
    assert f"resuming from the newest intact checkpoint, {checkpoint(copy, 4)}" in result.stderr
    assert checkpoint_names(copy)[2:] == ["step-00000006", "step-00000006.damaged"]
    assert_same_outcome(copy, finished, 6)


def test_rejects_a_run_without_an_intact_checkpoint(copy: Path) -> None:
    for step in (2, 4, 6):
        flip(checkpoint(copy, step) / "model.safetensors")
    before = folder_bytes(copy / "checkpoints")
    newest = str(checkpoint(copy, 6) / "model.safetensors")
    assert_exit_2(hero("train", "--run", copy, "--resume"), newest, "no checkpoint of the run is intact")
    assert folder_bytes(copy / "checkpoints") == before


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_divergence_keeps_a_checkpoint_to_go_back_to(data: Path, tmp_path: Path, dtype: str) -> None:
    """The newest checkpoint has finite weights and leads to a loss that is not."""
    run = tmp_path / "run"
    settings = {"train.dtype": dtype, "train.steps": 4, "checkpoint.every": 2, "checkpoint.keep": 1}
    settings |= {"optim.schedule": "constant"}
    run_hero(*training(run, data, HERO | settings))
    words = ["train", "--run", run, "--resume", "--train.steps=30"]
    result = hero(*words, "--checkpoint.every=1", "--optim.lr=1e30")
    done = len(metrics(run))
    assert result.returncode == 1 and 5 <= done < 30
    good, poisoned = checkpoint(run, done - 1), checkpoint(run, done)
    assert checkpoint_names(run) == [good.name, poisoned.name]
    advice = f"; last good checkpoint: {good}; to continue from it, move {poisoned.name} to another folder"
    assert advice in result.stderr.splitlines()[-1]
    again = hero(*words)
    assert again.returncode == 1 and advice in again.stderr
    assert "pass --resume with a smaller --optim.lr or" in again.stderr
    if done == 5:  # the last good checkpoint is from before the change
        shutil.rmtree(poisoned)
        run_hero(*words, "--optim.lr=0.001")
        assert [line["step"] for line in metrics(run)] == list(range(1, 31))


def test_skips_a_limited_number_of_updates_that_are_not_finite(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = {"train.steps": 4, "checkpoint.every": 1, "checkpoint.keep": 1, "optim.schedule": "constant"}
    run_hero(*training(run, data, HERO | settings))
    flags = ["--train.steps=30", "--train.skip_nonfinite=3", "--optim.lr=1e30"]
    result = hero("train", "--run", run, "--resume", *flags)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert " after 3 skipped updates in a row; last good checkpoint: " in last
    lines = metrics(run)
    skipped = [line["skipped"] for line in lines]
    assert skipped == [0] * (len(lines) - 3) + [1, 2, 3]
    assert all(line["loss"] is None or line["grad_norm"] is None for line in lines[-3:])
    done = len(lines) - 3
    assert checkpoint_names(run) == [f"step-{done - 1:08d}", f"step-{done:08d}"]


SPIKES = LONG | {"train.steps": 110, "checkpoint.every": 70, "train.spike_skip": 0.1}


def test_skipped_spikes_are_the_same_after_resume(data: Path, tmp_path: Path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    run_hero(*training(whole, data, SPIKES))
    skipped = [line["skipped"] for line in metrics(whole)]
    assert skipped[63] == 0 <= skipped[69] < skipped[109] < 46
    shutil.copytree(whole, halves)
    shutil.rmtree(checkpoint(halves, 110))
    run_hero("train", "--run", halves, "--resume")
    assert_same_outcome(halves, whole, 110)
    assert folder_bytes(checkpoint(halves, 110)) == folder_bytes(checkpoint(whole, 110))


def test_checkpoint_of_an_older_version(copy: Path, finished: Path) -> None:
    """Without skipped updates and digests of the token files."""
    shutil.rmtree(checkpoint(copy, 6))
    folder = checkpoint(copy, 4)
    state = json.loads((folder / "state.json").read_text())
    assert state.pop("skips") == {
        "skipped": 0, "nonfinite_in_a_row": 0, "losses": [], "gradient_norms": [],
    }  # fmt: skip
    assert len(state.pop("token_files")) == 2
    text = json.dumps(state)
    (folder / "state.json").write_text(text)
    files = json.loads((folder / "manifest.json").read_text())["files"]
    files["state.json"] = {"bytes": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    digest = hashlib.sha256(json.dumps(files, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    manifest = {"files": files, "sha256": digest}
    (folder / "manifest.json").write_text(json.dumps(manifest, sort_keys=True, indent=2) + "\n")
    assert "warning" not in run_hero("train", "--run", copy, "--resume").stderr
    assert_same_outcome(copy, finished, 6)


def test_resume_after_removing_a_corrupt_checkpoint(copy: Path, finished: Path) -> None:
    """Removing the checkpoint named in the message and resuming gives the same bytes."""
    shutil.rmtree(checkpoint(copy, 6))
    run_hero("train", "--run", copy, "--resume")
    assert_same_outcome(copy, finished, 6)


def test_incomplete_last_line(copy: Path, finished: Path) -> None:
    shutil.rmtree(checkpoint(copy, 6))
    log = copy / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:-40])
    run_hero("train", "--run", copy, "--resume")
    assert_same_outcome(copy, finished, 6)


def test_damaged_line(copy: Path, finished: Path) -> None:
    """The line of a step before the checkpoint is lost; the rest of the run is the same."""
    shutil.rmtree(checkpoint(copy, 6))
    log = copy / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    lines[1] = bytes(len(lines[1]) - 1) + b"\n"
    log.write_bytes(b"".join(lines))
    before = log.read_bytes()
    result = run_hero("train", "--run", copy, "--resume")
    assert f"warning: {log}: removed 1 damaged lines, the first is line 2" in result.stderr
    assert (copy / "metrics.jsonl.damaged").read_bytes() == before
    whole = deterministic_metrics(finished)
    assert deterministic_metrics(copy) == [whole[0], *whole[2:]]
    assert tensor_bytes(copy, 6) == tensor_bytes(finished, 6)


@pytest.mark.parametrize("content", [None, b"", b"[model]\nhidden_si"], ids=["missing", "empty", "truncated"])
@pytest.mark.parametrize("words", [[], ["--resume"]], ids=["new", "resume"])
def test_damaged_configuration(data: Path, copy: Path, content: bytes | None, words: list[str]) -> None:
    """The folder does not count as new, and keeps its metrics."""
    file = copy / "config.toml"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    before = folder_bytes(copy)
    for logged in ("metrics.jsonl", "checkpoints"):
        result = hero("train", "--data", data, "--run", copy, *words)
        what = "not found" if content is None else "found a truncated file"
        assert_exit_2(result, f"{file}: {what}, expected", logged, "restore it, or pass another --run")
        assert folder_bytes(copy) == before
        (copy / "metrics.jsonl").unlink(missing_ok=True)
        before.pop("metrics.jsonl", None)


def test_file_size_limit(copy: Path) -> None:
    """A write that fails in the middle of a checkpoint, as on a full disk."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))

    before = folder_bytes(checkpoint(copy, 6))
    longer = ["--train.steps=7", "--optim.decay_steps=4"]
    result = hero("train", "--run", copy, "--resume", *longer, preexec_fn=limit)
    assert_failed_save(result, checkpoint(copy, 7), "File too large")
    assert checkpoint_names(copy) == ["step-00000002", "step-00000004", "step-00000006"]
    assert folder_bytes(checkpoint(copy, 6)) == before
    run_hero("train", "--run", copy, "--resume")
    assert checkpoint_names(copy)[-1] == "step-00000007"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=10m", "tmpfs", str(folder)]
    try:
        failed = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"mount: {error}")
    if failed.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {failed.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk(data: Path, small_disk: Path) -> None:
    run = small_disk / "run"
    # In the background a save could fill the disk while a log is written.
    settings = {"train.steps": 20, "checkpoint.every": 1, "checkpoint.asynchronous": False}
    result = hero(*training(run, data, HERO | settings))
    left = checkpoint_names(run)
    assert 2 <= len(left) < 20
    assert_failed_save(result, checkpoint(run, len(left) + 2), "No space left on device")
    assert left == [f"step-{step:08d}" for step in range(1, len(left) + 1)]
    shutil.rmtree(checkpoint(run, 1))
    shutil.rmtree(checkpoint(run, 2))
    run_hero("train", "--run", run, "--resume", "--checkpoint.keep=1")
    assert checkpoint_names(run) == ["step-00000019", "step-00000020"]


def assert_failed_save(result: subprocess.CompletedProcess[str], folder: Path, reason: str) -> None:
    """Exit status 1 and a last line that names the checkpoint and the reason."""
    assert result.returncode == 1, result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"hero: cannot save checkpoint {folder}: ")
    assert reason in last and last.endswith("earlier checkpoints are intact; two saves in a row failed")
    assert result.stderr.count("warning: cannot save checkpoint ") == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_training_continues_after_one_failed_save(data: Path, tmp_path: Path, asynchronous: bool) -> None:
    run = tmp_path / "run"
    run.mkdir()
    obstacle = run / "checkpoints"
    obstacle.write_text("a file where the folder belongs")
    settings = {"train.steps": 250, "checkpoint.every": 100, "checkpoint.asynchronous": asynchronous}
    process = start(training(run, data, LONG | settings))
    wait_until(process, lambda: steps_logged(run) >= 120)
    obstacle.unlink()  # before the next save
    _, message = process.communicate(timeout=300)
    assert process.returncode == 0, message
    failed = f"warning: cannot save checkpoint {checkpoint(run, 100)}: "
    assert message.count(failed) == 1 and "a second failure in a row ends the run" in message
    assert checkpoint_names(run) == ["step-00000200", "step-00000250"]


def test_folder_is_locked_by_one_process(data: Path, tmp_path: Path) -> None:
    """A second process is rejected while one trains in the folder, and accepted afterwards."""
    run = tmp_path / "run"
    run.mkdir()
    with open(run / "lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert_exit_2(hero(*training(run, data, {})), "another process trains in this folder")
    run_hero(*training(run, data, {"train.steps": 2}))
