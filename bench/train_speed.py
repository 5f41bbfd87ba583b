"""Training tokens per second of `hero train`, baseline and HERO, against transformers, in one run and in turn.

Writes docs/results/train-speed-CONFIG.md.
"""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rounds import (
    PROGRAM,
    ROOT,
    Target,
    best_of,
    hero_json,
    in_turn,
    json_lines,
    metrics,
    note,
    own_command,
    parser,
    spread,
    table,
    types_of_transformers,
    within_rounds,
    write_page,
)

TOKENS_A_STEP = 4 * 512
BASELINE, HERO = "hero train, baseline", "hero train, HERO"
# Of transformers: type, implementation of the experts, compiled or not.
SETTINGS = [
    ("bf16", "grouped_mm", False),
    ("bf16", "eager", False),
    ("fp32", "grouped_mm", False),
    ("bf16", "grouped_mm", True),
    ("fp32", "grouped_mm", True),
]
PAIRS = 24  # of steps, one of the baseline and one of HERO, in a round
KEPT = 0.7  # settings of transformers below this part of the fastest are measured once
HEAT_SECONDS = 600  # of a setting's first run, which may compile; what takes longer counts as failed


def write_tokens(folder: Path, vocabulary: int) -> Path:
    """Random tokens as Megatron files, enough for every round; speed does not depend on what they say."""
    import numpy as np

    tokens = np.random.default_rng(0).integers(0, vocabulary, 400_000, dtype=np.uint16)
    prefix = folder / "random"
    tokens.tofile(f"{prefix}.bin")
    with open(f"{prefix}.idx", "wb") as idx:
        idx.write(b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + (8).to_bytes(1, "little"))
        idx.write((1).to_bytes(8, "little") + (2).to_bytes(8, "little"))
        idx.write(np.array([len(tokens)], np.int32).tobytes() + np.array([0], np.int64).tobytes())
        idx.write(np.array([0, 1], np.int64).tobytes())
    return prefix


@dataclass
class Runs:
    """`hero train`, again and again in one folder. Of HERO also the shares of the matrix products' rate it reported,
    and the time of a step that `hero cost` predicts over the time it took, in percent."""

    folder: Path
    prefix: Path
    config: str
    steps: int
    mfu: list[float] = field(default_factory=list)
    predicted: list[float] = field(default_factory=list)

    def command(self, overlay: str, run: Path, steps: int) -> list[str]:
        shutil.rmtree(run, ignore_errors=True)
        command = [PROGRAM, "train", "--config", ROOT / f"configs/{self.config}.toml", "--config"]
        command += [ROOT / f"configs/{overlay}.toml", "--data", self.prefix, "--run", run]
        command += ["--train.device=cpu"]
        command += [f"--train.steps={steps}", "--checkpoint.every=0", "--optim.warmup_steps=1"]
        return [str(word) for word in command]

    def rate(self, overlay: str) -> float:
        """Median tokens per second after the first two steps."""
        run = self.folder / "run"
        subprocess.run(self.command(overlay, run, self.steps + 2), check=True, stderr=subprocess.DEVNULL)
        lines = metrics(run)[2:]
        rate = statistics.median(line["tokens_per_second"] for line in lines)
        if overlay == "hero":
            self.mfu.append(100 * statistics.median(line["mfu"] for line in lines))
            cost = hero_json("cost", "--config", ROOT / f"configs/{self.config}.toml", "--measure",
                             "--train.device=cpu", "--json")  # fmt: skip
            seconds = cost["predicted time of a step"]["total"]["hero"]
            self.predicted.append(100 * seconds / (TOKENS_A_STEP / rate))
        return rate


@dataclass
class Stepper:
    """`hero train`, halted but for the steps it is asked for."""

    process: subprocess.Popen[bytes]
    run: Path

    def lines(self) -> int:
        """Of its metrics: one a step."""
        path = self.run / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def step(self) -> float:
        """Seconds of its next step."""
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


def by_turns(runs: Runs, pairs: int) -> float:
    """HERO's step time over the baseline's, in percent: the median over pairs of steps, one right after the other, as
    both train side by side and one of them is halted at any time. What else the machine does hits both alike."""
    steppers = []
    try:
        for overlay in ("baseline", "hero"):
            run = runs.folder / overlay
            # Two to warm up, and one that it never makes: it ends halted.
            process = subprocess.Popen(runs.command(overlay, run, pairs + 3), stderr=subprocess.DEVNULL)
            steppers.append(Stepper(process, run))
            for _ in range(2):
                steppers[-1].step()
        baseline, hero = steppers
        percent = []
        for number in range(pairs):
            first, second = (baseline, hero) if number % 2 == 0 else (hero, baseline)
            seconds = {id(first): first.step(), id(second): second.step()}
            percent.append(100 * (seconds[id(hero)] / seconds[id(baseline)] - 1))
        return statistics.median(percent)
    finally:
        for stepper in steppers:
            stepper.process.kill()
            stepper.process.wait()


def hf_words(config: str, setting: tuple[str, str, bool], steps: int) -> list[str]:
    dtype, experts, compiled = setting
    words = [sys.executable, ROOT / "bench/hf_train.py", "--config", ROOT / f"configs/{config}.toml"]
    words += ["--dtype", dtype, "--experts", experts, "--steps", steps, *(["--compile"] if compiled else [])]
    return [str(word) for word in words]


def hf_rate(words: list[str]) -> float:
    """Median tokens per second of bench/hf_train.py."""
    return statistics.median(json_lines(*words)[-1]["tokens_per_second"])


def heat(words: list[str]) -> float | str:
    """Median tokens per second of bench/hf_train.py, or why it does not run."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=HEAT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"not done after {HEAT_SECONDS} s"
    if done.returncode == 0:
        return statistics.median(json.loads(done.stdout)["tokens_per_second"])
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1][:200] if lines else f"exit status {done.returncode}"


def worth_repeating(
    config: str, settings: Sequence[tuple[str, str, bool]], steps: int, more: Sequence[str] = ()
) -> tuple[dict[str, Callable[[], float]], list[str]]:
    """Contestants: the settings of transformers that come near the fastest of them in a run of their own. Beside
    them a line for each of the others."""
    rates: dict[str, tuple[list[str], float]] = {}
    skipped = []
    for setting in settings:
        dtype, experts, compiled = setting
        name = f"transformers, {dtype}, {experts}" + (", torch.compile" if compiled else "")
        words = [*hf_words(config, setting, steps), *more]
        found = heat(words)
        if isinstance(found, str):
            skipped.append(f"{name} did not run: {found}")
            note(skipped[-1])
        else:
            rates[name] = (words, found)
            note(f"heat: {name}: {found:,.0f} tokens/s")
    fastest = max((rate for _, rate in rates.values()), default=0)
    contestants = {}
    for name, (words, rate) in rates.items():
        if rate < KEPT * fastest:
            skipped.append(f"{name}: {rate:,.0f} tokens/s in a heat, not repeated.")
        else:
            contestants[name] = lambda words=words: hf_rate(words)
    return contestants, skipped


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
    types, reason = types_of_transformers()
    settings = [setting for setting in SETTINGS if setting[0] in types]
    skipped = [reason] if reason else []
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), write_tokens(Path(folder), 8192), args.config, args.steps)
        chosen = SETTINGS[2:3] if args.quick else settings
        theirs, others = worth_repeating(args.config, chosen, few)
        skipped += others
        ours = {BASELINE: lambda: runs.rate("baseline"), HERO: lambda: runs.rate("hero")}
        rates = in_turn(ours | theirs, args.rounds, "tokens/s")
        overhead = in_turn(
            {"HERO's steps beside the baseline's": lambda: by_turns(runs, pairs)}, args.rounds, "%", 1
        )

    best = best_of(rates, "transformers")
    rows = [
        [name, spread(values, 0), spread(within_rounds(values, rates[best]))]
        for name, values in rates.items()
    ]
    (percent,) = overhead.values()
    shown = f"{args.config}, bf16, 4 x 512 tokens a step"
    targets = [
        Target(
            f"training, {kind} over transformers' best setting, {shown}",
            4.5,
            within_rounds(rates[name], rates[best]),
            own_command(),
            ceiling=[
                100 * ratio / share
                for ratio, share in zip(within_rounds(rates[name], rates[best]), runs.mfu, strict=True)
            ],
        )
        for kind, name in (("baseline", BASELINE), ("HERO", HERO))
    ]
    targets += [
        Target(f"share of the matrix products' rate that training sustains, {shown}", 40, runs.mfu, own_command(),
               unit="%", places=0),
        Target(f"step time, HERO over baseline, {shown}", 2, percent, own_command(), at_least=False, unit="%",
               places=1),
    ]  # fmt: skip
    write_page(
        args,
        f"Training speed, `{args.config}`, {TOKENS_A_STEP} tokens a step",
        [
            f"Ratios within rounds to {best}, the fastest of its settings here.",
            "",
            *table(["", "tokens/s, median (range over rounds)", "ratio, median (range)"], rows),
            "",
            *(f"{line}\n" for line in skipped),
            f"HERO changes the baseline's step time by {spread(percent, 1, '%')}: each round the median of "
            f"{pairs} pairs of steps, one right after the other, both runs side by side and one of them halted "
            f"at any time. HERO's share of the rate of matrix "
            f"products that `hero train` measures as it begins (`mfu`): {spread(runs.mfu, 0, '%')}. The time of a step "
            f"that `hero cost --measure` predicts for it, over what it took: {spread(runs.predicted, 0, '%')}.",
        ],
        targets,
    )


if __name__ == "__main__":
    main()
