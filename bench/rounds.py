"""Shared benchmark code: round-robin measurement, medians with range, tables, targets, pages."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from machine import gpu, library_multiplies_bf16, machine, processor_folder

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build/hero"


@dataclass
class Target:
    """A performance target. `values`: one per round. `ceiling`: the values if our code ran at the GEMM
    throughput measured on the same machine; empty if unknown."""

    what: str
    bound: float
    values: list[float]
    command: str
    at_least: bool = True
    unit: str = ""
    places: int = 2
    ceiling: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def met(self) -> bool:
        return self.median >= self.bound if self.at_least else self.median <= self.bound

    @property
    def reachable(self) -> bool:
        return self.met or not self.ceiling or statistics.median(self.ceiling) >= self.bound

    @property
    def limit(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:g}{self.unit}"

    @property
    def measured(self) -> str:
        return spread(self.values, self.places, self.unit)

    @property
    def at_gemm_throughput(self) -> str:
        return spread(self.ceiling, self.places, self.unit) if self.ceiling else ""

    @property
    def result(self) -> str:
        if self.met:
            return "met"
        return "**missed**" if self.reachable else "**missed**, not reachable on this machine"


def spread(values: Sequence[float], places: int = 2, unit: str = "") -> str:
    """Median and range, for example "2.68 (2.37 to 2.84)"."""
    low, high, middle = min(values), max(values), statistics.median(values)
    shown = [f"{value:,.{places}f}" for value in (middle, low, high)]
    return shown[0] + unit + (f" ({shown[1]} to {shown[2]})" if len(values) > 1 else "")


def round_robin(
    candidates: Mapping[str, Callable[[], float]], rounds: int, unit: str, places: int = 0
) -> dict[str, list[float]]:
    """Runs the candidates as A B C, C B A, A B C ... and returns one value per candidate and round. Prints
    the remaining time."""
    values: dict[str, list[float]] = {name: [] for name in candidates}
    begin, done = time.monotonic(), 0
    for number in range(rounds):
        for name in list(candidates)[:: -1 if number % 2 else 1]:
            values[name].append(candidates[name]())
            done += 1
            left = (time.monotonic() - begin) / done * (rounds * len(candidates) - done)
            rate = f"{values[name][-1]:,.{places}f} {unit}"
            note(f"round {number + 1}/{rounds}: {name}: {rate}, {left:.0f} s left")
    return values


def paired_ratio(
    first: Callable[[], float], second: Callable[[], float], seconds: float, pairs: int = 1
) -> float:
    """first() / second(): the median of pairs of calls, one right after the other in alternating order, for at least
    `seconds` and at least so many pairs."""
    ratios: list[float] = []
    begin = time.monotonic()
    while len(ratios) < pairs or time.monotonic() - begin < seconds:
        order = (first, second) if len(ratios) % 2 else (second, first)
        values = {call: call() for call in order}
        ratios.append(values[first] / values[second])
    return statistics.median(ratios)


def ratios_per_round(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """values / others per round."""
    return [value / other for value, other in zip(values, others, strict=True)]


def best_of(values: Mapping[str, Sequence[float]], prefix: str = "") -> str:
    """The candidate with the highest median among those whose names start with `prefix`."""
    return max((n for n in values if n.startswith(prefix)), key=lambda n: statistics.median(values[n]))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    return ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def transformers_dtypes() -> tuple[list[str], str]:
    """The dtypes in which transformers is measured on this CPU, and the reason if one is missing."""
    if library_multiplies_bf16():
        return ["fp32", "bf16"], ""
    return ["fp32"], ("transformers is measured only in fp32: without AVX-512 PyTorch has no fast bf16 GEMM.")


def hero_json(*words: Any) -> Any:
    """The program's JSON output. CalledProcessError on failure, with its message on stderr."""
    command = [str(word) for word in (PROGRAM, *words)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def json_lines(*words: Any) -> list[Any]:
    """The output of another program, one JSON value per line."""
    command = [str(word) for word in words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def metrics(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run by step."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def cpu_page(name: str) -> str:
    """A page in the folder of the results of this processor, relative to docs/results."""
    return f"{processor_folder(ROOT / 'docs/results').name}/{name}"


def results_folder(short: bool = False) -> Path:
    """Where pages go: those of short runs, and of instruction sets chosen with HERO_GEMM instead of the processor's
    own, are no results of this processor."""
    if forced := os.environ.get("HERO_GEMM"):
        return ROOT / f"build/bench-{forced}"
    return ROOT / ("build/bench-quick" if short else "docs/results")


def parser(description: str | None, page: str, rounds: int = 5) -> argparse.ArgumentParser:
    """An argument parser with the options of every benchmark."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--rounds", type=int, default=rounds, help="rounds of round-robin measurement")
    result.add_argument(
        "--quick", action="store_true", help="one round with little work, to check that it runs"
    )
    result.add_argument("--out", type=Path, default=results_folder() / page, help="the page to write")
    result.add_argument("--targets", type=Path, help="file with the targets for `bench/run.py`")
    return result


def parse_on_gpu(benchmark: argparse.ArgumentParser) -> tuple[argparse.Namespace, str]:
    """The arguments of a benchmark that runs on a GPU, or with `--device cpu` without one, and the device's name for
    its page."""
    benchmark.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    args = benchmark.parse_args()
    if args.device == "cpu":
        return args, "the processor"
    if name := gpu():
        return args, name
    raise SystemExit("--device: found cuda, expected cpu without a GPU")


def target_table(targets: Sequence[Target]) -> list[str]:
    """A table of targets with the command of each."""
    rows = [[t.what, t.limit, t.measured, t.result, f"`{t.command}`"] for t in targets]
    return table(["what", "target", "measured", "", ""], rows)


def own_command() -> str:
    """The command line of this script, relative to the checkout root."""
    script = Path(sys.argv[0]).resolve()
    words = list(sys.argv[1:])
    for option in ("--targets", "--out"):
        if option in words:
            at = words.index(option)
            del words[at : at + 2]
    return " ".join([".venv/bin/python", str(script.relative_to(ROOT)), *words])


def write_page(
    args: argparse.Namespace, title: str, lines: Sequence[str], targets: Sequence[Target] = ()
) -> None:
    """Writes the page (command, machine, `lines`), and the targets file if requested."""
    head = [f"# {title}", "", f"`{own_command()}` on {machine()}.", ""]
    text = "\n".join([*head, *lines, ""])
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text)
    if args.targets:
        args.targets.write_text(json.dumps([asdict(target) for target in targets]))
    print(text)
