"""Training speed of other projects on a model of our shapes, each in processes of its own environment."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from peers.process import installed, missing, python
from rounds import ROOT, json_lines, note, transformers_dtypes

MIN_RELATIVE_SPEED = 0.7  # slower settings, relative to the project's fastest, are measured once
TRIAL_TIMEOUT = 600  # timeout in seconds of a setting's first run, including compilation
SLOW_PROJECT = 0.25  # with the fastest settings only, slower projects are measured once, relative to all
MAX_SECONDS = 30  # of a process's timed steps
SCRIPTS = {"transformers": "hf_train.py", "torchtitan": "torchtitan_train.py"}


@dataclass(frozen=True)
class Setting:
    project: str
    dtype: str
    experts: str
    compiled: bool = False

    @property
    def name(self) -> str:
        return f"{self.project}, {self.dtype}, {self.experts}" + (", torch.compile" if self.compiled else "")

    @property
    def product_dtype(self) -> str:
        return "bf16" if self.dtype == "mixed" else self.dtype

    def command(self, config: str, steps: int, more: Sequence[str]) -> list[str]:
        words = [python(self.project), ROOT / "bench" / SCRIPTS[self.project]]
        words += [
            "--config",
            ROOT / f"configs/{config}.toml",
            "--dtype",
            self.dtype,
            "--experts",
            self.experts,
        ]
        words += ["--steps", steps, "--max-seconds", MAX_SECONDS]
        words += [*(["--compile"] if self.compiled else []), *more]
        return [str(word) for word in words]


SETTINGS = [
    Setting("transformers", "bf16", "grouped_mm"),
    Setting("transformers", "bf16", "eager"),
    Setting("transformers", "fp32", "grouped_mm"),
    Setting("transformers", "bf16", "grouped_mm", compiled=True),
    Setting("transformers", "fp32", "grouped_mm", compiled=True),
    Setting("torchtitan", "bf16", "grouped_mm"),
    Setting("torchtitan", "fp32", "grouped_mm"),
    Setting("torchtitan", "bf16", "grouped_mm", compiled=True),
    Setting("torchtitan", "fp32", "grouped_mm", compiled=True),
]
QUICK = [SETTINGS[2], SETTINGS[5]]


def possible(settings: Sequence[Setting], on_gpu: bool = False) -> tuple[list[Setting], list[str]]:
    """The settings that can be measured on this machine, and why others cannot."""
    dtypes, reason = (["fp32", "bf16"], "") if on_gpu else transformers_dtypes()
    projects = ["transformers", *installed("torchtitan")]
    reasons = [*([reason] if reason else []), *missing("torchtitan")]
    return [s for s in settings if s.project in projects and s.product_dtype in dtypes], reasons


def median_rate(words: list[str]) -> float:
    """Median tokens per second of a training script."""
    return statistics.median(json_lines(*words)[-1]["tokens_per_second"])


def trial_run(words: list[str]) -> float | str:
    """Median tokens per second of a training script, or the reason why it does not run."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TRIAL_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return f"timed out after {TRIAL_TIMEOUT} s"
    if done.returncode == 0:
        return statistics.median(json.loads(done.stdout)["tokens_per_second"])
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return f"exit status {done.returncode}" + (f", {lines[-1][:200]}" if lines else "")


def competitive_settings(
    config: str,
    settings: Sequence[Setting],
    steps: int,
    more: Sequence[str] = (),
    min_relative_speed: float = MIN_RELATIVE_SPEED,
) -> tuple[dict[str, Callable[[], float]], list[str]]:
    """The settings that are close to the fastest of their project in a trial run, and a line for each of the others.
    With a minimum of 1 only the fastest; a project slower than SLOW_PROJECT then gets one trial run."""
    chosen, skipped = possible(settings, on_gpu="cuda" in more)
    rates: dict[Setting, float] = {}

    def slow(project: str) -> bool:
        rate = max((rate for s, rate in rates.items() if s.project == project), default=math.inf)
        return min_relative_speed >= 1 and rate < SLOW_PROJECT * max(rates.values(), default=0)

    for setting in chosen:
        if slow(setting.project):
            skipped.append(f"{setting.name} was not run: {setting.project} is slow in another setting.")
            note(skipped[-1])
            continue
        found = trial_run(setting.command(config, steps, more))
        if isinstance(found, str):
            skipped.append(f"{setting.name} did not run: {found}")
            note(skipped[-1])
        else:
            rates[setting] = found
            note(f"trial run: {setting.name}: {found:,.0f} tokens/s")
    candidates = {}
    for setting, rate in rates.items():
        fastest = max(other for s, other in rates.items() if s.project == setting.project)
        if rate < min_relative_speed * fastest or slow(setting.project):
            skipped.append(f"{setting.name}: {rate:,.0f} tokens/s in a trial run, not repeated.")
        else:
            words = setting.command(config, steps, more)
            candidates[setting.name] = lambda words=words: median_rate(words)
    return candidates, skipped
