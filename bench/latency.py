"""Latency of the command line: --help, the first training step, resuming a large checkpoint, a report.

Wall times, with the processor time of all threads beside them. Files are in the page cache, except where a
row says "from disk". Needs about 10 GB of memory and 7 GB of disk space in the temporary
folder (TMPDIR). Writes docs/results/PROCESSOR/latency.md.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rounds import (
    PROGRAM,
    Target,
    cpu_page,
    note,
    own_command,
    parser,
    ratios_per_round,
    spread,
    table,
    write_page,
)

# 516 M parameters with a vocabulary of 8,192.
LARGE = {
    "model.hidden_size": 1024,
    "model.num_hidden_layers": 8,
    "model.num_attention_heads": 16,
    "model.num_key_value_heads": 4,
    "model.head_dim": 64,
    "model.num_experts": 32,
    "model.moe_intermediate_size": 608,
}
TINY = {"model.hidden_size": 64, "model.num_hidden_layers": 2, "model.moe_intermediate_size": 32}
ONE_SEQUENCE = {"train.sequence": 64, "train.micro_batch": 1, "train.global_batch": 1, "eval.every": 0}
BLOCK = 16 << 20  # bytes
LIMITS_MS = {"--help": 50, "--version": 50, "nothing": 50}
STATUS = {"nothing": 2}  # an unknown command
REPORT_RUNS, REPORT_STEPS, QUICK_STEPS, COPIED_STEPS = 20, 10_000, 100, 20
# Rows of the page.
FIRST_STEP = "hero train --config demo, up to the end of the first step"
REPORT = f"hero report of {REPORT_RUNS} runs of {REPORT_STEPS:,} steps"
READ = "reading the checkpoint's files"
READ_DISK, READ_DIRECT = f"{READ} from disk", f"{READ} from disk, O_DIRECT"
RESUME_TINY, RESUME = "resume, tiny model", "resume, 516 M parameters"
RESUME_DISK = f"{RESUME}, from disk"


@dataclass
class Times:
    """Seconds of every round: elapsed, and of the processor."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def flags(options: dict[str, Any]) -> list[str]:
    return [f"--{key}={value}" for key, value in options.items()]


def hero(*words: Any, until: Callable[[], bool] | None = None, status: int = 0) -> tuple[float, float]:
    """Runs the program; returns wall and processor time. With `until`, kills it as soon as that is true.
    RuntimeError for another exit status."""
    with tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(
            [str(word) for word in (PROGRAM, *words)], stdout=subprocess.DEVNULL, stderr=errors
        )
        ended, killed, wait = 0, False, 0.0
        while not ended:
            ended, found, usage = os.wait4(process.pid, os.WNOHANG if until and not killed else 0)
            if until and not killed and until():
                wait, killed = time.perf_counter() - begin, True
                process.kill()
            elif not ended:
                time.sleep(0.004)
        wall = wait if killed else time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(found)  # waited for here
        if process.returncode != (-9 if killed else status):
            errors.seek(0)
            raise RuntimeError(f"{words}: exit status {process.returncode}: {errors.read().decode()[-500:]}")
    return wall, usage.ru_utime + usage.ru_stime


def lines(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def prepare_data(folder: Path, inputs: list[Path]) -> Path:
    """Tokenizes text as scripts/demo.sh does."""
    tokenizer, data = folder / "tokenizer.model", folder / "data"
    words = ["--input", *inputs, "--skip-invalid", "--out"]
    hero("data", "tokenizer", "--vocab-size", 8192, *words, tokenizer)
    hero("data", "tokenize", "--tokenizer", tokenizer, *words, data)
    return Path(f"{data}-train")


def first_step(folder: Path, data: Path) -> tuple[float, float]:
    run = folder / "first-step"
    shutil.rmtree(run, ignore_errors=True)
    return hero("train", "--config", "demo", "--data", data, "--run", run, until=lambda: lines(run) > 0)


def make_checkpoint(run: Path, data: Path, model: dict[str, Any]) -> Path:
    """Trains for one step and returns the checkpoint."""
    options = model | ONE_SEQUENCE | {"train.steps": 1, "optim.warmup_steps": 1}
    hero("train", "--config", "demo", "--data", data, "--run", run, *flags(options))
    return next((run / "checkpoints").iterdir())


def resume(run: Path) -> tuple[float, float]:
    """Times until the first step begins: until its line in metrics.jsonl, less the step itself."""
    file = run / "metrics.jsonl"
    before = file.read_bytes()
    wall, cpu = hero("train", "--run", run, "--resume", "--train.steps=2", until=lambda: lines(run) > 1)
    step = json.loads(file.read_text().splitlines()[-1])["step_ms"] / 1e3
    file.write_bytes(before)
    return wall - step, cpu


def read_files(folder: Path, flags: int = 0) -> tuple[float, float]:
    """Times of reading all files of a folder, one after the other. `flags`: O_DIRECT reads from the disk."""
    begin, cpu = time.perf_counter(), time.process_time()
    with mmap.mmap(-1, BLOCK) as buffer:  # aligned
        for path in folder.iterdir():
            file = os.open(path, os.O_RDONLY | flags)
            while os.readv(file, [buffer]):
                pass
            os.close(file)
    return time.perf_counter() - begin, time.process_time() - cpu


def evict(folder: Path) -> None:
    """Removes the files from the page cache."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def copy_lines(source: Path, target: Path, steps: int) -> None:
    """Repeats the lines of a JSON Lines file, with the steps that follow, up to `steps`."""
    records = [json.loads(line) for line in source.read_text().splitlines()]
    with target.open("w") as file:
        for first in range(0, steps, COPIED_STEPS):
            for record in records:
                if first + record["step"] <= steps:
                    file.write(json.dumps(record | {"step": first + record["step"]}) + "\n")


def make_runs(folder: Path, data: Path, count: int, steps: int) -> list[Path]:
    """Folders of runs, alternately of a baseline and of HERO, whose metrics are copies of those of a short run."""
    options = {
        "train.steps": COPIED_STEPS,
        "optim.warmup_steps": 2,
        "train.routing_every": 10,
        "eval.every": 10,
    }
    runs = [folder / f"run{number}" for number in range(count)]
    for kind, target in zip(("baseline", "hero"), runs):
        source = folder / kind
        hero("train", "--config", "demo", kind, "--data", data, "--run", source, *flags(options))
        target.mkdir()
        for name in ("config.toml", "starts.jsonl"):
            shutil.copy(source / name, target)
        for name in ("metrics.jsonl", "routing.jsonl"):
            copy_lines(source / name, target / name, steps)
    for number in range(2, count):
        shutil.copytree(runs[number % 2], runs[number])
    return runs


def measure(candidates: dict[str, Callable[[], tuple[float, float]]], rounds: int) -> dict[str, Times]:
    """Runs every candidate once in every round, in alternating order."""
    times = {name: Times() for name in candidates}
    for number in range(rounds):
        for name in list(candidates)[:: -1 if number % 2 else 1]:
            wall, cpu = candidates[name]()
            times[name].wall.append(wall)
            times[name].cpu.append(cpu)
            note(f"round {number + 1}/{rounds}: {name}: {wall:.3f} s, processor {cpu:.3f} s")
    return times


def median_of(runs: int, measured: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    walls, cpus = zip(*(measured() for _ in range(runs)))
    return statistics.median(walls), statistics.median(cpus)


def measure_all(folder: Path, args: argparse.Namespace) -> tuple[dict[str, Times], float]:
    """The times of everything, and the size of the resumed checkpoint in GB."""
    packages = Path(sysconfig.get_paths()["purelib"])
    data = prepare_data(folder, [packages / "numpy" / "lib" if args.quick else packages / "numpy"])
    runs = make_runs(folder, data, REPORT_RUNS, QUICK_STEPS if args.quick else REPORT_STEPS)
    words = {word: (lambda word=word: hero(word, status=STATUS.get(word, 0))) for word in LIMITS_MS}
    times = measure(
        {f"hero {word}": (lambda run=run: median_of(9, run)) for word, run in words.items()}
        | {
            FIRST_STEP: lambda: first_step(folder, data),
            REPORT: lambda: hero("report", *runs, "--out", folder / "report.html"),
        },
        args.rounds,
    )
    small, large = folder / "small", folder / "large"
    make_checkpoint(small, data, TINY)
    checkpoint = make_checkpoint(large, data, TINY if args.quick else LARGE)

    def from_disk(measured: Callable[[], tuple[float, float]]) -> tuple[float, float]:
        evict(checkpoint)
        return measured()

    resume(large)  # a virtual machine is assigned memory when it is first used
    times |= measure(
        {
            RESUME_TINY: lambda: resume(small),
            READ_DIRECT: lambda: from_disk(lambda: read_files(checkpoint, os.O_DIRECT)),
            READ_DISK: lambda: from_disk(lambda: read_files(checkpoint)),
            READ: lambda: read_files(checkpoint),
            RESUME: lambda: resume(large),
            RESUME_DISK: lambda: from_disk(lambda: resume(large)),
        },
        args.rounds,
    )
    return times, sum(path.stat().st_size for path in checkpoint.iterdir()) / 1e9


def rates_of(times: dict[str, Times], gigabytes: float) -> dict[str, list[float]]:
    """GB/s of reading the checkpoint's files and of resuming, less the time of a tiny model."""
    tiny = statistics.median(times[RESUME_TINY].wall)
    bases = {READ: 0.0, READ_DISK: 0.0, READ_DIRECT: 0.0, RESUME: tiny, RESUME_DISK: tiny}
    return {name: [gigabytes / (wall - base) for wall in times[name].wall] for name, base in bases.items()}


def targets_of(times: dict[str, Times], rates: dict[str, list[float]]) -> list[Target]:
    def at_most(name: str, limit: float, unit: str, factor: float = 1) -> Target:
        values = [factor * wall for wall in times[name].wall]
        return Target(name, limit, values, own_command(), at_least=False, unit=unit)

    return [
        *(at_most(f"hero {word}", limit, " ms", 1e3) for word, limit in LIMITS_MS.items()),
        at_most(FIRST_STEP, 2, " s"),
        *(
            Target(
                f"{name}, GB/s vs. {READ_DIRECT}",
                1,
                ratios_per_round(rates[name], rates[READ_DIRECT]),
                own_command(),
            )
            for name in (RESUME, RESUME_DISK)
        ),
        at_most(REPORT, 10, " s"),
    ]


def busy_cores(seconds: float = 2.0) -> float:
    """Processor time that other programs use while this one sleeps, in cores."""

    def idle_and_all() -> tuple[int, int]:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return ticks[3] + ticks[4], sum(ticks)

    idle, everything = idle_and_all()
    time.sleep(seconds)
    idle_later, everything_later = idle_and_all()
    return (os.cpu_count() or 1) * (1 - (idle_later - idle) / (everything_later - everything))


def main() -> None:
    args = parser(__doc__, cpu_page("latency.md")).parse_args()
    if args.quick:
        args.rounds = 1
    busy = busy_cores()
    warning = f"**Other programs were running** on {busy:.1f} cores: wall times are too long."
    with tempfile.TemporaryDirectory() as work:
        times, gigabytes = measure_all(Path(work), args)
    rates = rates_of(times, gigabytes)
    write_page(
        args,
        "Latency",
        [
            *([warning, ""] if busy > 0.2 else []),
            "Seconds, median (range over rounds). Files are in the page cache unless a row says otherwise. `nothing` is "
            "an unknown command.",
            "",
            *table(
                ["", "wall time", "processor time"],
                [[name, spread(found.wall, 3), spread(found.cpu, 3)] for name, found in times.items()],
            ),
            "",
            f"The checkpoint has {gigabytes:.2f} GB: weights and two moments in fp32 of 516 million parameters. A "
            "resume verifies the SHA-256 of every file. Its time ends where the first step begins; less the time of a "
            "tiny model:",
            "",
            *table(["", "GB/s"], [[name, spread(values)] for name, values in rates.items()]),
            "",
            f"The report's runs have {REPORT_STEPS:,} steps, copies of the metrics of short runs of `configs/demo.toml`. "
            "Tokenization: [tokenize-speed.md](tokenize-speed.md).",
        ],
        targets_of(times, rates),
    )


if __name__ == "__main__":
    main()
