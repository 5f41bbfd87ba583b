"""Faults of one rank of four: killed, stopped, cut off from the network, slow, with a clock that jumps."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from faults.processes import RANKS, network, run_all, start_ranks
from faults.runs import INTERPOSER, Case, Mismatch, Reference, end, require, steps_done, tail, wait

LAYOUTS: list[dict[str, Any]] = [
    {},
    {"parallel.pipeline": 2},
    {"parallel.expert": 2},
    {"parallel.pipeline": 2, "parallel.expert": 2},
]
STEPS = {"train.steps": 100}


def settings_of(case: Case) -> dict[str, Any]:
    return STEPS | LAYOUTS[case.number % len(LAYOUTS)] | {"checkpoint.asynchronous": case.rng.random() < 0.5}


def lose(case: Case, reference: Reference, how: str) -> None:
    """The other ranks exit with status 1; so does the lost one when it runs again. Then the run is resumed."""
    settings = settings_of(case)
    reference.outcome(settings, RANKS)
    lost, step = case.rng.randrange(RANKS), case.rng.randint(0, 90)
    words = reference.words(case.run, settings)
    processes = start_ranks(network(), words, case.folder, 29501, {})
    try:
        wait_for_step(case.run, step, [p.pid for p in processes])
        time.sleep(case.rng.uniform(0, 0.1))
        if how == "partitioned":
            network().disconnect(lost)
        else:
            processes[lost].send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        case.counts["lost ranks"] += 1
        case.counts["rank 0"] += lost == 0
        for rank in sorted(range(RANKS), key=lambda r: r == lost):
            if rank == lost and how == "stopped":
                processes[lost].send_signal(signal.SIGCONT)
            status = wait(processes[rank], case.folder / f"log.{rank}", seconds=60)
            allowed = (-9,) if rank == lost and how == "killed" else (1,)
            require(
                status in allowed, f"rank {rank} ended with {status}: {tail(case.folder / f'log.{rank}')}"
            )
    finally:
        end(processes)
        network().connect(lost)
    resume(case, reference, settings)


def resume(case: Case, reference: Reference, settings: dict[str, Any]) -> None:
    statuses, text = run_all(reference.words(case.run, settings), RANKS, case.folder)
    require(statuses == [0] * RANKS, f"the resumed run ended with {statuses}: {text}")
    case.counts["resumed"] += 1
    reference.compare(case.run, settings, RANKS)


def wait_for_step(run: Path, step: int, pids: list[int], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while steps_done(run) < step:
        if time.monotonic() > deadline or any(has_ended(pid) for pid in pids):
            raise Mismatch(f"step {step} is not reached: {steps_done(run)} steps are done")
        time.sleep(0.002)


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def slow(case: Case, reference: Reference) -> None:
    """One rank runs for a tenth of the time: 10 ms of every 100."""
    settings = settings_of(case)
    processes = start_ranks(network(), reference.words(case.run, settings), case.folder, 29502, {})
    try:
        victim = processes[case.number % RANKS]
        wait_for_step(case.run, 1, [p.pid for p in processes])
        deadline = time.monotonic() + 120
        while victim.poll() is None and time.monotonic() < deadline:
            os.kill(victim.pid, signal.SIGSTOP)
            time.sleep(0.09)
            os.kill(victim.pid, signal.SIGCONT)
            time.sleep(0.01)
        statuses = [wait(p, case.folder / f"log.{r}") for r, p in enumerate(processes)]
    finally:
        end(processes)
    require(statuses == [0] * RANKS, f"ended with {statuses}: {tail(case.folder / 'log.0')}")
    reference.compare(case.run, settings, RANKS)
    case.counts["runs"] += 1


def clock(case: Case, reference: Reference) -> None:
    """The clocks of two ranks jump, each in its own way."""
    settings = settings_of(case)
    variables = {
        rank: {"LD_PRELOAD": str(INTERPOSER), "HERO_FAULT_CLOCK": str(case.rng.randint(1, 10**9))}
        for rank in (0, 1 + case.number % 3)
    }
    words = reference.words(case.run, settings)
    processes = start_ranks(network(), words, case.folder, 29503, variables)
    try:
        statuses = [wait(p, case.folder / f"log.{r}") for r, p in enumerate(processes)]
    finally:
        end(processes)
    require(statuses == [0] * RANKS, f"ended with {statuses}: {tail(case.folder / 'log.0')}")
    reference.compare(case.run, settings, RANKS)
    case.counts["runs"] += 1
