"""Faults of a single process: SIGKILL, failing calls, a full disk, a system clock that jumps."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from faults.runs import (
    INTERPOSER,
    Case,
    Reference,
    check_reported,
    failing_call,
    finish,
    is_unfinished,
    require,
    signal_name,
    start,
    steps_done,
    tail,
    wait,
)

KILLS_PER_RUN = 4
LOGS = ("metrics.jsonl", "routing.jsonl", "tb/")
SHORT = {"train.steps": 6, "checkpoint.every": 2, "train.routing_every": 2, "optim.warmup_steps": 1}


def kill(case: Case, reference: Reference) -> None:
    """Four kills of one run: half at a random time, a quarter in a write of a checkpoint file, a quarter in a
    write of a log file, half of which is done."""
    settings = {"checkpoint.asynchronous": case.rng.random() < 0.5}
    _, seconds = reference.outcome({})
    log = case.folder / "log"
    while case.counts["kills"] < KILLS_PER_RUN:
        where = case.rng.choice(["any time", "any time", "checkpoint", "log"])
        variables = {}
        if where == "checkpoint":
            variables = failing_call("write", "run/checkpoints/", case.rng.randint(1, 60), "kill")
        elif where == "log":
            name = case.rng.choice(LOGS)
            number = case.rng.randint(1, {"metrics.jsonl": 100, "routing.jsonl": 10, "tb/": 1000}[name])
            variables = failing_call("write", f"run/{name}", number, "kill")
        process = start(reference.words(case.run, settings), log, variables)
        if not variables:
            time.sleep(case.rng.uniform(0, seconds))
            process.kill()
        status = wait(process, log)
        if status == 0:  # it finished before the kill: start over
            reference.compare(case.run, settings)
            shutil.rmtree(case.run)
            continue
        require(status == -9, f"ended with {signal_name(status)}: {tail(log)}")
        case.counts["kills"] += 1
        case.counts["in a log write"] += where == "log"
        case.counts["in a checkpoint write"] += where != "log" and is_unfinished(case.run)
    finish(case, reference, settings)


def call(case: Case, reference: Reference, name: str) -> bool:
    """Call `case.number` + 1 fails in a new run. Whether it happened: the run may make fewer calls."""
    return one_failing_call(case, reference, name, SHORT | {"checkpoint.asynchronous": False})


def call_on_resume(case: Case, reference: Reference, name: str) -> bool:
    """The same when a run continues that was killed in a write of its second checkpoint."""
    settings = SHORT | {"checkpoint.asynchronous": True}
    words = reference.words(case.run, settings)
    log = case.folder / "log"
    killed = failing_call("write", "run/checkpoints/step-00000004.tmp", 2, "kill")
    status = wait(start(words, log, killed), log)
    require(status == -9 and is_unfinished(case.run), f"was not killed in a save: {tail(log)}")
    return one_failing_call(case, reference, name, settings)


def one_failing_call(case: Case, reference: Reference, name: str, settings: dict[str, Any]) -> bool:
    log = case.folder / "failing.log"
    process = start(reference.words(case.run, settings), log, failing_call(name, "/run", case.number + 1))
    status = wait(process, log)
    text = log.read_text()
    if "fault: " not in text:
        require(status == 0, f"ended with {signal_name(status)}: {tail(log)}")
        return False
    check_reported(status, log)
    if name in ("write", "fsync"):
        require("Input/output error" in text, f"{name} failed without a message: {tail(log)}")
    case.counts["failed calls"] += 1
    case.counts["training continued"] += status == 0
    if status != 0:
        finish(case, reference, settings)
    reference.compare(case.run, settings)
    return True


def disk(case: Case, reference: Reference) -> None:
    """Another program fills the disk at a random step and frees it a random time later."""
    settings = {"checkpoint.asynchronous": bool(case.number % 2)}
    reference.outcome({})
    log, filler = case.folder / "log", case.run.parent / "disk" / "filler"
    filler.parent.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(filler.parent)]
    subprocess.run(command, check=True, capture_output=True)
    inside = Case(case.kind, case.number, case.rng, filler.parent, case.counts)
    try:
        process = start(reference.words(inside.run, settings), log)
        first = case.rng.randint(0, 250)
        while process.poll() is None and steps_done(inside.run) < first:
            time.sleep(0.002)
        # Enough for some steps of the logs, but not for a checkpoint.
        fill(filler, left=case.rng.choice([0, 30_000, 300_000]))
        freed = threading.Timer(case.rng.uniform(0.1, 1), lambda: filler.unlink())
        freed.start()
        status = wait(process, log)
        freed.join()
        check_reported(status, log)
        case.counts["full disks"] += 1
        case.counts["reported"] += "No space left on device" in log.read_text()
        case.counts["training continued"] += status == 0
        if status != 0:
            finish(inside, reference, settings)
        reference.compare(inside.run, settings)
    finally:
        subprocess.run(["umount", "--lazy", str(filler.parent)], check=True)


def fill(path: Path, left: int) -> None:
    """Writes a file that leaves `left` bytes of its file system, in blocks because others write too."""
    with path.open("wb") as out:
        while (free := os.statvfs(path.parent)).f_bavail * free.f_frsize > left + 4096:
            try:
                os.posix_fallocate(out.fileno(), os.fstat(out.fileno()).st_size, 4096)
            except OSError:
                return


def clock(case: Case, reference: Reference) -> None:
    """The system clock jumps ten times a second; a kill and a resume in between."""
    settings = {"checkpoint.asynchronous": bool(case.number % 2)}
    log = case.folder / "log"
    variables = {"LD_PRELOAD": str(INTERPOSER), "HERO_FAULT_CLOCK": str(case.rng.randint(1, 10**9))}
    killed = start(reference.words(case.run, settings), log, variables)
    time.sleep(case.rng.uniform(0, reference.outcome({})[1]))
    killed.kill()
    wait(killed, log)
    status = wait(start(reference.words(case.run, settings), log, variables), log)
    require(status == 0, f"ended with {signal_name(status)}: {tail(log)}")
    reference.compare(case.run, settings)
    case.counts["runs"] += 1
