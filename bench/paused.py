"""Paired steps of two `hero train` processes, one of which is always suspended: other load on the machine
affects both equally."""

from __future__ import annotations

import math
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rounds import PROGRAM, ROOT

WARM_UP = 2


def train_command(run: Path, *configs: str) -> list[str]:
    """`hero train` with these of configs/, without data, validation, checkpoints and the number of steps."""
    words: list[str | Path] = [PROGRAM, "train", "--run", run, "--train.device=cpu", "--eval.every=0"]
    words += ["--checkpoint.every=0", "--optim.warmup_steps=1"]
    for name in configs:
        words += ["--config", ROOT / f"configs/{name}.toml"]
    return [str(word) for word in words]


@dataclass
class PausedTraining:
    """A `hero train` process that is suspended except during requested steps."""

    process: subprocess.Popen[bytes]
    run: Path

    def lines(self) -> int:
        """Number of completed steps in its metrics."""
        path = self.run / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def step(self) -> float:
        """Runs the next step and returns its seconds."""
        done = self.lines()
        begin = time.perf_counter()
        self.process.send_signal(signal.SIGCONT)
        while self.lines() == done:
            if self.process.poll() is not None:
                raise RuntimeError(f"hero train: exit status {self.process.returncode}")
            time.sleep(0.0005)
        seconds = time.perf_counter() - begin
        self.process.send_signal(signal.SIGSTOP)
        return seconds


def step_time_ratio(words: Sequence[str], other: Sequence[str], runs: tuple[Path, Path], pairs: int) -> float:
    """Step time of the `hero train` command `words` relative to that of `other`: the median over pairs of
    consecutive steps. Each command has its run folder, which is deleted first, and gets the number of steps.

    The process that is started first is up to 1% slower, so each command is once; the geometric mean of both."""
    first = _first_to_second((words, other), runs, pairs // 2)
    return math.sqrt(first / _first_to_second((other, words), runs[::-1], pairs // 2))


def _first_to_second(commands: Sequence[Sequence[str]], runs: Sequence[Path], pairs: int) -> float:
    trainings = []
    try:
        for words, run in zip(commands, runs, strict=True):
            shutil.rmtree(run, ignore_errors=True)
            # One step more than used: the process ends suspended.
            command = [*words, f"--train.steps={pairs + WARM_UP + 1}"]
            trainings.append(PausedTraining(subprocess.Popen(command, stderr=subprocess.DEVNULL), run))
            for _ in range(WARM_UP):
                trainings[-1].step()
        first, second = trainings
        ratios = []
        for number in range(pairs):
            if number % 2 == 0:
                seconds, reference = first.step(), second.step()
            else:
                reference, seconds = second.step(), first.step()
            ratios.append(seconds / reference)
        return statistics.median(ratios)
    finally:
        for training in trainings:
            training.process.kill()
            training.process.wait()
