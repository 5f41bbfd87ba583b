"""Stopped, killed or suspended ranks: all processes of a run exit, report the reason, and the run can
resume."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from program import ENVIRONMENT, PROGRAM, checkpoint_names, folder_bytes, metrics, training
from ranks import free_port, launch_variables, rank_log, run_on, run_ranks_checked, start

MODEL: dict[str, Any] = {
    "router.kind": "hero",
    "router.history": "global",
    "model.num_hidden_layers": 4,
    "train.sequence": 32,
    "train.micro_batch": 1,
    "train.global_batch": 4,
    "optim.warmup_steps": 1,
    "optim.min_lr": 1e-3,
    "parallel.timeout": 15,  # a busy machine must not lose a rank in the first step
}
PIPELINE = {"parallel.pipeline": 2}
EXPERT = {"parallel.expert": 2}


def wait_for_step(run: Path, step: int, seconds: float = 120) -> bool:
    """Waits until the run reaches `step`; returns whether it did within `seconds`."""
    deadline = time.monotonic() + seconds
    while steps_done(run) < step and time.monotonic() < deadline:
        time.sleep(0.02)
    return steps_done(run) >= step


def steps_done(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def newest_tensors(run: Path) -> dict[str, bytes]:
    folder = run / "checkpoints" / checkpoint_names(run)[-1]
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.safetensors"))}


@pytest.mark.parametrize("layout", [PIPELINE, EXPERT], ids=["pipeline", "expert"])
@pytest.mark.parametrize("sent_signal", [signal.SIGKILL, signal.SIGSTOP])
def test_lost_rank_ends_the_other_ranks(
    sent_signal: signal.Signals, layout: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    words = training(run, data, MODEL | layout | {"train.steps": 100000, "checkpoint.every": 5})
    processes = start(words, 4, log)
    try:
        assert wait_for_step(run, 3)
        lost = 3 if sent_signal == signal.SIGKILL else 1
        processes[lost].send_signal(sent_signal)
        others = [p for r, p in enumerate(processes) if r != lost]
        # Allows for the timeout, the diagnosis, and a busy machine.
        assert [process.wait(90) for process in others] == [1, 1, 1]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    logs = [rank_log(log, rank) for rank in range(4) if rank != lost]
    assert all("hero: " in text and "step " in text for text in logs)
    assert all(f"rank {lost}" in text for text in logs), logs
    assert any(what in text for text in logs for what in ("ranks", "channel", "all_to_all", "all_reduce"))


def test_signal_to_one_rank_saves_on_all_ranks(data: Path, tmp_path: Path) -> None:
    alone, run, log = tmp_path / "alone", tmp_path / "run", tmp_path / "log"
    settings = MODEL | PIPELINE | EXPERT | {"checkpoint.every": 0, "parallel.timeout": 60}
    words = training(run, data, settings | {"train.steps": 100000})
    processes = start(words, 4, log)
    assert wait_for_step(run, 3)
    processes[2].send_signal(signal.SIGTERM)
    assert [process.wait(60) for process in processes] == [128 + signal.SIGTERM] * 4
    done = len(metrics(run))
    assert checkpoint_names(run) == [f"step-{done:08d}"]
    assert f"stopped by signal {signal.SIGTERM.value} after step {done}" in rank_log(log, 0)
    run_ranks_checked([*training(run, data, settings), "--resume", f"--train.steps={done + 3}"], 4, log)
    run_ranks_checked([*training(alone, data, settings), f"--train.steps={done + 3}"], 4, log)
    assert newest_tensors(run) == newest_tensors(alone)


def test_signal_ends_the_wait_for_missing_ranks(data: Path, tmp_path: Path) -> None:
    variables = launch_variables(2)[0]
    words = training(tmp_path / "run", data, MODEL | {"parallel.timeout": 600})
    with subprocess.Popen([PROGRAM, *map(str, words)], env=ENVIRONMENT | variables) as process:
        try:
            while process.poll() is None and not accepts_connections(int(variables["MASTER_PORT"])):
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == -signal.SIGTERM
        finally:
            process.kill()


def accepts_connections(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def test_skipped_updates_on_several_ranks(data: Path, tmp_path: Path) -> None:
    alone, run, log = tmp_path / "alone", tmp_path / "run", tmp_path / "log"
    settings = MODEL | {"train.steps": 110, "train.spike_skip": 0.1, "checkpoint.every": 70}
    run_ranks_checked(training(alone, data, settings), 2, log)
    shutil.copytree(alone, run)
    shutil.rmtree(run / "checkpoints" / checkpoint_names(run)[-1])
    run_ranks_checked([*training(run, data, settings), "--resume"], 2, log)
    assert newest_tensors(run) == newest_tensors(alone)
    skipped = [line["skipped"] for line in metrics(alone)]
    assert skipped[63] == 0 < skipped[-1] and skipped == [line["skipped"] for line in metrics(run)]


def test_two_failed_saves_end_all_ranks(data: Path, tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    run.mkdir()
    (run / "checkpoints").write_text("a file where the folder belongs")
    settings = MODEL | PIPELINE | {"train.steps": 20, "checkpoint.every": 2, "parallel.timeout": 60}
    processes = start(training(run, data, settings), 2, log)
    assert [process.wait(60) for process in processes] == [1, 1]
    logs = [rank_log(log, rank) for rank in range(2)]
    assert all("; two saves in a row failed" in text for text in logs), logs
    assert [text.count("warning: cannot save checkpoint ") for text in logs] == [1, 0]
    assert 4 <= steps_done(run) <= 6


def torchrun(
    run: Path, data: Path, settings: dict[str, Any], restarts: int, *words: Any, ranks: int = 2
) -> list[str]:
    program = shutil.which("torchrun", path=str(Path(sys.executable).parent))
    assert program
    return [program, f"--nproc-per-node={ranks}", f"--max-restarts={restarts}", "--monitor-interval=0.1",
            "--master-addr=127.0.0.1", f"--master-port={free_port()}", "--no-python", "--",
            PROGRAM, *map(str, training(run, data, settings, *words))]  # fmt: skip


LAUNCHED = ENVIRONMENT | {"GLOO_SOCKET_IFNAME": "lo", "OMP_WAIT_POLICY": "passive"}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_restart_does_not_resume_a_run_that_the_first_attempt_rejected(
    ranks: int, data: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    settings = MODEL | {"train.steps": 2, "checkpoint.every": 2, "parallel.timeout": 60}
    run_on(training(run, data, settings), ranks, tmp_path / "log")
    before = folder_bytes(run)
    words = torchrun(run, data, settings, 1, "--train.steps=4", "--optim.lr=0.5", ranks=ranks)
    done = subprocess.run(words, env=LAUNCHED, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr[-3000:]
    assert done.stderr.count(f"hero: {run}: contains a run; pass --resume") == 2, done.stderr[-3000:]
    assert folder_bytes(run) == before


def test_a_restart_resumes_the_run_that_the_launch_has_begun(data: Path, tmp_path: Path) -> None:
    alone, run = tmp_path / "alone", tmp_path / "run"
    settings = MODEL | {
        "train.steps": 12,
        "checkpoint.every": 2,
        "parallel.timeout": 60,
        "optim.schedule": "constant",
    }
    run_on(training(alone, data, settings), 2, tmp_path / "log")
    launcher = subprocess.Popen(
        torchrun(run, data, settings | {"train.steps": 400}, 1),
        env=LAUNCHED,
        stdout=(tmp_path / "torchrun.log").open("wb"),
        stderr=subprocess.STDOUT,
    )
    try:
        assert wait_for_step(run, 6), (tmp_path / "torchrun.log").read_text()[-3000:]
        ranks = children(launcher.pid)
        os.kill(ranks[0], signal.SIGKILL)
        while set(children(launcher.pid)) & set(ranks) and launcher.poll() is None:
            time.sleep(0.05)
        first = steps_done(run)
        assert wait_for_step(run, first + 6), (tmp_path / "torchrun.log").read_text()[-3000:]
    finally:
        launcher.terminate()
        launcher.wait(60)
    assert [line["loss"] for line in metrics(run)[:12]] == [line["loss"] for line in metrics(alone)]


@pytest.mark.long
def test_run_survives_repeated_kills(data: Path, tmp_path: Path) -> None:
    """torchrun restarts the processes; the run resumes and reaches the weights of an uninterrupted run."""
    alone, run = tmp_path / "alone", tmp_path / "run"
    settings = MODEL | PIPELINE | {"train.steps": 400, "checkpoint.every": 4, "parallel.timeout": 20}
    run_ranks_checked(training(alone, data, settings), 2, tmp_path / "log")
    launcher = subprocess.Popen(
        torchrun(run, data, settings, 100),
        env=LAUNCHED,
        stdout=(tmp_path / "torchrun.log").open("wb"),
        stderr=subprocess.STDOUT,
    )
    rng, kills, deadline = random.Random(7), 0, time.monotonic() + 600
    try:
        while kills < 25 and launcher.poll() is None and time.monotonic() < deadline:
            # At a random time, but early enough that the run does not end before the last kill.
            wait_for_step(run, 15 * (kills + 1), rng.uniform(0.5, 6))
            if ranks := children(launcher.pid):
                os.kill(rng.choice(ranks), signal.SIGKILL)
                kills += 1
        assert launcher.wait(300) == 0, (tmp_path / "torchrun.log").read_text()[-3000:]
    finally:
        launcher.kill()
    assert kills == 25
    assert newest_tensors(run) == newest_tensors(alone)
    assert [line["loss"] for line in metrics(run)] == [line["loss"] for line in metrics(alone)]


def children(pid: int) -> list[int]:
    """Processes of the program that are children of `pid`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, fields = (folder / "stat").read_text().rsplit(")", 1)
        except OSError:  # the process may have exited
            continue
        if name.endswith("(" + Path(PROGRAM).name) and int(fields.split()[1]) == pid:
            found.append(int(folder.name))
    return found
