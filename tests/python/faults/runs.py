"""The runs into which faults are injected, and the comparison with the uninterrupted run."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from program import ENVIRONMENT, PROGRAM, checkpoint_names, deterministic_metrics, folder_bytes, training
from program import write_megatron as write_tokens

INTERPOSER = Path(PROGRAM).parent / "tests" / "libhero_faults.so"
TINY: dict[str, Any] = {
    "router.kind": "hero",
    "router.history": "global",
    "model.hidden_size": 32,
    "model.num_hidden_layers": 2,
    "model.num_experts": 4,
    "model.vocab_size": 256,
    "model.max_position_embeddings": 32,
    "train.sequence": 16,
    "train.micro_batch": 1,
    "train.global_batch": 4,
    "train.steps": 300,
    "train.routing_every": 10,
    "checkpoint.every": 10,
    "checkpoint.keep": 2,
    "parallel.timeout": 8,
}
TIMES = {"busy_ms_max", "busy_ms_mean", "slowest", "history_ms"}


class Mismatch(AssertionError):
    """A case did not behave as required."""


def require(condition: object, message: str) -> None:
    if not condition:
        raise Mismatch(message)


@dataclass
class Case:
    """One fault case in an own folder; `counts` is what the table shows."""

    kind: str
    number: int
    rng: random.Random
    folder: Path
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def run(self) -> Path:
        return self.folder / "run"


class Reference:
    """Runs without faults, one for each set of settings, made when first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.made: dict[str, tuple[dict[str, Any], float]] = {}
        noise = np.random.default_rng(1)
        write_tokens(self.data, [noise.integers(0, 256, 400).tolist() for _ in range(50)])

    def words(self, run: Path, settings: dict[str, Any]) -> list[Any]:
        """A command that starts or resumes the run."""
        return training(run, self.data, TINY | settings, "--resume")

    def outcome(self, settings: dict[str, Any], ranks: int = 1) -> tuple[dict[str, Any], float]:
        """The result of the uninterrupted run and its seconds."""
        from faults.processes import run_all

        relevant = {k: v for k, v in settings.items() if not k.startswith("checkpoint.async")}
        key = json.dumps([relevant, ranks])
        if key not in self.made:
            run = Path(tempfile.mkdtemp(dir=self.folder)) / "run"
            begin = time.monotonic()
            statuses, log = run_all(self.words(run, relevant), ranks, run.parent)
            require(statuses == [0] * ranks, f"the uninterrupted run failed: {log}")
            self.made[key] = result_of(run), time.monotonic() - begin
            shutil.rmtree(run.parent)
        return self.made[key]

    def compare(self, run: Path, settings: dict[str, Any], ranks: int = 1) -> None:
        expected, found = self.outcome(settings, ranks)[0], result_of(run)
        for name in expected:
            require(found[name] == expected[name], f"{name} differs from the uninterrupted run")


def result_of(run: Path) -> dict[str, Any]:
    """All bytes of the last checkpoint and the logs without times."""
    last = run / "checkpoints" / checkpoint_names(run)[-1]
    metrics = deterministic_metrics(run)
    for line in metrics:
        line["ranks"] = {k: v for k, v in line.get("ranks", {}).items() if k not in TIMES}
    result: dict[str, Any] = folder_bytes(last)
    # The options of the run may say how it saves; the manifest has the hash of that file.
    for name in ("config.toml", "manifest.json"):
        result.pop(name)
    return result | {
        "last checkpoint": last.name,
        "metrics.jsonl": metrics,
        "routing.jsonl": (run / "routing.jsonl").read_bytes(),
        "TensorBoard": tensorboard_values(run),
    }


def tensorboard_values(run: Path) -> list[tuple[int, str, float]]:
    from tensorboard.compat.proto.event_pb2 import Event

    (file,) = (run / "tb").iterdir()
    data, at, values = file.read_bytes(), 0, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        event = Event.FromString(data[at + 12 : at + 12 + size])
        values += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
        at += 16 + size
    return [value for value in values if not value[1].startswith(("speed/", "memory/"))]


def failing_call(call: str, files: str, number: int, action: str = "eio") -> dict[str, str]:
    """Environment in which call `number` to a file with `files` in its path fails."""
    return {
        "LD_PRELOAD": str(INTERPOSER),
        "HERO_FAULT_CALL": call,
        "HERO_FAULT_FILES": files,
        "HERO_FAULT_NUMBER": str(number),
        "HERO_FAULT_ACTION": action,
    }


def start(words: list[Any], log: Path, variables: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Starts one process; its output is appended to `log`."""
    with log.open("ab") as out:
        return subprocess.Popen(
            [PROGRAM, *map(str, words)], env=ENVIRONMENT | (variables or {}), stdout=out, stderr=out
        )


def wait(process: subprocess.Popen[bytes], log: Path, seconds: float = 120) -> int:
    """Exit status; a process that hangs is a mismatch."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise Mismatch(f"hangs for {seconds} s: {tail(log)}") from None


def finish(case: Case, reference: Reference, settings: dict[str, Any]) -> None:
    """Resumes the run until its end and compares the result."""
    log = case.folder / "log"
    status = wait(start(reference.words(case.run, settings), log), log)
    require(status == 0, f"the resumed run ended with {status}: {tail(log)}")
    case.counts["resumed"] += 1
    reference.compare(case.run, settings)


def check_reported(status: int, log: Path) -> None:
    """A failed call ends the process with status 0, 1 or 2 and, except for 0, one line."""
    require(status in (0, 1, 2), f"ended with {signal_name(status)}: {tail(log)}")
    text = log.read_text()
    require(status == 0 or "hero: " in text.splitlines()[-1], f"no message: {tail(log)}")


def signal_name(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"


def tail(log: Path) -> str:
    return log.read_text(errors="replace")[-800:] if log.exists() else ""


def is_unfinished(run: Path) -> bool:
    """Whether the last process ended while it wrote a checkpoint."""
    return any((run / "checkpoints").glob("*.tmp"))


def steps_done(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
