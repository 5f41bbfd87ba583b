"""Ranks that are stopped, killed or frozen: a run of several processes ends as a whole, says why,
and goes on."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from program import ENVIRONMENT, PROGRAM, checkpoint_names, metrics, training
from ranks import free_port, ran_together, said, start

MODEL: dict[str, Any] = {
    "router.kind": "hero",
    "router.history": "global",
    "model.num_hidden_layers": 4,
    "train.sequence": 32,
    "train.micro_batch": 1,
    "train.global_batch": 4,
    "optim.warmup_steps": 1,
    "optim.min_lr": 1e-3,
    "parallel.timeout": 4,
}
PIPELINE = {"parallel.pipeline": 2}
EXPERT = {"parallel.expert": 2}


def wait_for_step(run: Path, step: int, seconds: float = 120) -> bool:
    """Whether the run has come so far in this time."""
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
@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_ends_the_others(
    fate: signal.Signals, layout: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    words = training(run, data, MODEL | layout | {"train.steps": 100000, "checkpoint.every": 5})
    processes = start(words, 4, log)
    try:
        assert wait_for_step(run, 3)
        lost = 3 if fate == signal.SIGKILL else 1
        processes[lost].send_signal(fate)
        others = [p for r, p in enumerate(processes) if r != lost]
        # The timeout, what it takes to find the reason, and a busy machine.
        assert [process.wait(30) for process in others] == [1, 1, 1]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    told = [said(log, rank) for rank in range(4) if rank != lost]
    assert all("hero: " in text and "step " in text for text in told)
    assert all(f"rank {lost}" in text for text in told), told
    assert any(what in text for text in told for what in ("ranks", "lane", "all_to_all", "all_reduce"))


def test_a_signal_to_one_rank_saves_on_all(data: Path, tmp_path: Path) -> None:
    alone, run, log = tmp_path / "alone", tmp_path / "run", tmp_path / "log"
    settings = MODEL | PIPELINE | EXPERT | {"checkpoint.every": 0, "parallel.timeout": 60}
    words = training(run, data, settings | {"train.steps": 100000})
    processes = start(words, 4, log)
    assert wait_for_step(run, 3)
    processes[2].send_signal(signal.SIGTERM)
    assert [process.wait(60) for process in processes] == [128 + signal.SIGTERM] * 4
    done = len(metrics(run))
    assert checkpoint_names(run) == [f"step-{done:08d}"]
    assert f"stopped by signal {signal.SIGTERM.value} after step {done}" in said(log, 0)
    ran_together([*training(run, data, settings), "--resume", f"--train.steps={done + 3}"], 4, log)
    ran_together([*training(alone, data, settings), f"--train.steps={done + 3}"], 4, log)
    assert newest_tensors(run) == newest_tensors(alone)


@pytest.mark.long
def test_a_run_survives_twenty_kills(data: Path, tmp_path: Path) -> None:
    """torchrun starts the processes again; the run goes on by itself to the weights of an undisturbed one."""
    alone, run = tmp_path / "alone", tmp_path / "run"
    settings = MODEL | PIPELINE | {"train.steps": 400, "checkpoint.every": 4, "parallel.timeout": 20}
    ran_together(training(alone, data, settings), 2, tmp_path / "log")
    torchrun = shutil.which("torchrun", path=str(Path(sys.executable).parent))
    assert torchrun
    launcher = subprocess.Popen(
        [torchrun, "--nproc-per-node=2", "--max-restarts=100", "--monitor-interval=0.1",
         "--master-addr=127.0.0.1", f"--master-port={free_port()}", "--no-python", "--",
         PROGRAM, *map(str, training(run, data, settings))],
        env=ENVIRONMENT | {"GLOO_SOCKET_IFNAME": "lo", "OMP_WAIT_POLICY": "passive"},
        stdout=(tmp_path / "torchrun.log").open("wb"), stderr=subprocess.STDOUT,
    )  # fmt: skip
    draw, kills, deadline = random.Random(7), 0, time.monotonic() + 600
    try:
        while kills < 25 and launcher.poll() is None and time.monotonic() < deadline:
            # At a random moment, but before the run comes to its end with kills left.
            wait_for_step(run, 15 * (kills + 1), draw.uniform(0.5, 6))
            if ranks := children(launcher.pid):
                os.kill(draw.choice(ranks), signal.SIGKILL)
                kills += 1
        assert launcher.wait(300) == 0, (tmp_path / "torchrun.log").read_text()[-3000:]
    finally:
        launcher.kill()
    assert kills == 25
    assert newest_tensors(run) == newest_tensors(alone)
    assert [line["loss"] for line in metrics(run)] == [line["loss"] for line in metrics(alone)]


def children(pid: int) -> list[int]:
    """Processes of the program that this one has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, fields = (folder / "stat").read_text().rsplit(")", 1)
        except OSError:  # it has ended meanwhile
            continue
        if name.endswith("(" + Path(PROGRAM).name) and int(fields.split()[1]) == pid:
            found.append(int(folder.name))
    return found
