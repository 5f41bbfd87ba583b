"""Training throughput of `hero train`, baseline and HERO, against transformers and torchtitan, measured round-robin.

Writes docs/results/PROCESSOR/train-speed-CONFIG.md.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from machine import SLOW_BF16, instruction_set
from paused import step_time_ratio, train_command
from peers.training import MIN_RELATIVE_SPEED, QUICK, SETTINGS, competitive_settings
from rounds import (
    ROOT,
    Target,
    best_of,
    cpu_page,
    hero_json,
    metrics,
    own_command,
    parser,
    ratios_per_round,
    results_folder,
    round_robin,
    spread,
    table,
    write_page,
)
from token_files import write_tokens

TOKENS_PER_STEP = 4 * 512
BASELINE, HERO = "hero train, baseline", "hero train, HERO"
# Throughput relative to the best setting of transformers. Without fast bf16 instructions both multiply in fp32.
RATIOS = {"amx_bf16": 4.5, "avx512_bf16": 4.5, SLOW_BF16: 2.2, "avx512": 2.2, "avx2": 2.0, "sse2": 2.0}
PAIRS = 48


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


def main() -> None:
    args_parser = parser(__doc__, "")
    args_parser.set_defaults(out=None)
    args_parser.add_argument("--config", default="small-qwen3")
    args_parser.add_argument("--steps", type=int, default=12)
    args_parser.add_argument(
        "--pairs", type=int, default=PAIRS, help="of a baseline step and a HERO step, per round"
    )
    args_parser.add_argument(
        "--min-relative-speed", type=float, default=MIN_RELATIVE_SPEED,
        help="of a setting in its trial run, to be measured; 1: the fastest of each project that is not far slower",
    )  # fmt: skip
    args = args_parser.parse_args()
    args.out = args.out or results_folder() / cpu_page(f"train-speed-{args.config}.md")
    if args.quick:
        args.rounds, args.steps = 1, 2
    few = max(2, args.steps // 3)
    pairs = 2 if args.quick else args.pairs
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), write_tokens(Path(folder), 8192), args.config, args.steps)
        theirs, skipped = competitive_settings(
            args.config, QUICK if args.quick else SETTINGS, few, min_relative_speed=args.min_relative_speed
        )
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
            RATIOS[instruction_set()],
            ratios_per_round(rates[name], rates[best]),
            own_command(),
            ceiling=[
                100 * ratio / share
                for ratio, share in zip(ratios_per_round(rates[name], rates[best]), runs.mfu, strict=True)
            ],
        )
        for kind, name in (("baseline", BASELINE), ("HERO", HERO))
    ]
    if any(name.startswith("torchtitan") for name in rates):
        other = rates[best_of(rates, "torchtitan")]
        targets += [
            Target(
                f"training, {kind} vs. best setting of torchtitan, {shown}",
                1.0,
                ratios_per_round(rates[name], other),
                own_command(),
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
            f"Ratios per round to {best}, the fastest setting of transformers here.",
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
