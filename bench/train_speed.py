"""Training throughput of `hero train`, baseline and HERO, against transformers, measured round-robin.

Writes docs/results/train-speed-CONFIG.md.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paused import step_time_ratio, train_command
from rounds import (
    ROOT,
    Target,
    best_of,
    hero_json,
    json_lines,
    metrics,
    note,
    own_command,
    parser,
    ratios_per_round,
    round_robin,
    spread,
    table,
    transformers_dtypes,
    write_page,
)
from token_files import write_tokens

TOKENS_PER_STEP = 4 * 512
BASELINE, HERO = "hero train, baseline", "hero train, HERO"
# transformers settings: dtype, experts implementation, torch.compile.
SETTINGS = [
    ("bf16", "grouped_mm", False),
    ("bf16", "eager", False),
    ("fp32", "grouped_mm", False),
    ("bf16", "grouped_mm", True),
    ("fp32", "grouped_mm", True),
]
PAIRS = 48  # pairs of a baseline step and a HERO step per round
MIN_RELATIVE_SPEED = 0.7  # slower transformers settings, relative to the fastest, are measured once
TRIAL_TIMEOUT = 600  # timeout in seconds of a setting's first run, including compilation


@dataclass
class Runs:
    """Repeated `hero train` runs in one folder. For HERO also records the reported MFU, and the step time
    predicted by `hero cost` relative to the measured time, in percent."""

    folder: Path
    prefix: Path
    config: str
    steps: int
    mfu: list[float] = field(default_factory=list)
    predicted: list[float] = field(default_factory=list)

    def command(self, overlay: str, run: Path) -> list[str]:
        """`hero train` without the number of steps."""
        return [*train_command(run, self.config, overlay), f"--data={self.prefix}"]

    def throughput(self, overlay: str) -> float:
        """Median tokens per second after the first two steps."""
        run = self.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        command = [*self.command(overlay, run), f"--train.steps={self.steps + 2}"]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        lines = metrics(run)[2:]
        rate = statistics.median(line["tokens_per_second"] for line in lines)
        if overlay == "hero":
            self.mfu.append(100 * statistics.median(line["mfu"] for line in lines))
            cost = hero_json("cost", "--config", ROOT / f"configs/{self.config}.toml", "--measure",
                             "--train.device=cpu", "--json")  # fmt: skip
            seconds = cost["predicted time of a step"]["total"]["hero"]
            self.predicted.append(100 * seconds / (TOKENS_PER_STEP / rate))
        return rate


def interleaved_overhead(runs: Runs, pairs: int) -> float:
    """HERO's step time relative to the baseline's, in percent."""
    folders = runs.folder / "hero", runs.folder / "baseline"
    commands = [runs.command(folder.name, folder) for folder in folders]
    return 100 * (step_time_ratio(commands[0], commands[1], folders, pairs) - 1)


def hf_words(config: str, setting: tuple[str, str, bool], steps: int) -> list[str]:
    dtype, experts, compiled = setting
    words = [sys.executable, ROOT / "bench/hf_train.py", "--config", ROOT / f"configs/{config}.toml"]
    words += ["--dtype", dtype, "--experts", experts, "--steps", steps, *(["--compile"] if compiled else [])]
    return [str(word) for word in words]


def hf_throughput(words: list[str]) -> float:
    """Median tokens per second of bench/hf_train.py."""
    return statistics.median(json_lines(*words)[-1]["tokens_per_second"])


def trial_run(words: list[str]) -> float | str:
    """Median tokens per second of bench/hf_train.py, or the reason why it does not run."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TRIAL_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return f"timed out after {TRIAL_TIMEOUT} s"
    if done.returncode == 0:
        return statistics.median(json.loads(done.stdout)["tokens_per_second"])
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1][:200] if lines else f"exit status {done.returncode}"


def competitive_settings(
    config: str, settings: Sequence[tuple[str, str, bool]], steps: int, more: Sequence[str] = ()
) -> tuple[dict[str, Callable[[], float]], list[str]]:
    """The transformers settings that are close to the fastest in a trial run, and a line for each of the
    others."""
    rates: dict[str, tuple[list[str], float]] = {}
    skipped = []
    for setting in settings:
        dtype, experts, compiled = setting
        name = f"transformers, {dtype}, {experts}" + (", torch.compile" if compiled else "")
        words = [*hf_words(config, setting, steps), *more]
        found = trial_run(words)
        if isinstance(found, str):
            skipped.append(f"{name} did not run: {found}")
            note(skipped[-1])
        else:
            rates[name] = (words, found)
            note(f"trial run: {name}: {found:,.0f} tokens/s")
    fastest = max((rate for _, rate in rates.values()), default=0)
    candidates = {}
    for name, (words, rate) in rates.items():
        if rate < MIN_RELATIVE_SPEED * fastest:
            skipped.append(f"{name}: {rate:,.0f} tokens/s in a trial run, not repeated.")
        else:
            candidates[name] = lambda words=words: hf_throughput(words)
    return candidates, skipped


def main() -> None:
    args_parser = parser(__doc__, "")
    args_parser.set_defaults(out=None)
    args_parser.add_argument("--config", default="small-qwen3")
    args_parser.add_argument("--steps", type=int, default=12)
    args = args_parser.parse_args()
    args.out = args.out or ROOT / f"docs/results/train-speed-{args.config}.md"
    if args.quick:
        args.rounds, args.steps = 1, 2
    few = max(2, args.steps // 3)
    pairs = 2 if args.quick else PAIRS
    types, reason = transformers_dtypes()
    settings = [setting for setting in SETTINGS if setting[0] in types]
    skipped = [reason] if reason else []
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), write_tokens(Path(folder), 8192), args.config, args.steps)
        chosen = SETTINGS[2:3] if args.quick else settings
        theirs, others = competitive_settings(args.config, chosen, few)
        skipped += others
        ours = {BASELINE: lambda: runs.throughput("baseline"), HERO: lambda: runs.throughput("hero")}
        rates = round_robin(ours | theirs, args.rounds, "tokens/s")
        overhead = round_robin(
            {"HERO step time vs. baseline": lambda: interleaved_overhead(runs, pairs)}, args.rounds, "%", 1
        )

    best = best_of(rates, "transformers")
    rows = [
        [name, spread(values, 0), spread(ratios_per_round(values, rates[best]))]
        for name, values in rates.items()
    ]
    (percent,) = overhead.values()
    shown = f"{args.config}, bf16, 4 x 512 tokens per step"
    targets = [
        Target(
            f"training, {kind} vs. best setting of transformers, {shown}",
            4.5,
            ratios_per_round(rates[name], rates[best]),
            own_command(),
            ceiling=[
                100 * ratio / share
                for ratio, share in zip(ratios_per_round(rates[name], rates[best]), runs.mfu, strict=True)
            ],
        )
        for kind, name in (("baseline", BASELINE), ("HERO", HERO))
    ]
    targets += [
        Target(f"MFU of training, {shown}", 40, runs.mfu, own_command(),
               unit="%", places=0),
        Target(f"step time, HERO over baseline, {shown}", 2, percent, own_command(), at_least=False, unit="%",
               places=1),
    ]  # fmt: skip
    write_page(
        args,
        f"Training speed, `{args.config}`, {TOKENS_PER_STEP} tokens per step",
        [
            f"Ratios per round to {best}, its fastest setting here.",
            "",
            *table(["", "tokens/s, median (range over rounds)", "ratio, median (range)"], rows),
            "",
            *(f"{line}\n" for line in skipped),
            f"HERO changes the baseline's step time by {spread(percent, 1, '%')}: per round from {pairs} pairs "
            "of consecutive steps of two processes, one of which is always suspended. HERO's `mfu`, "
            "relative to the "
            f"GEMM throughput that `hero train` measures at the start: {spread(runs.mfu, 0, '%')}. Step time "
            "predicted "
            f"by `hero cost --measure` relative to the measured time: {spread(runs.predicted, 0, '%')}.",
        ],
        targets,
    )


if __name__ == "__main__":
    main()
