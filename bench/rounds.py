"""What the benchmarks share: contestants in turn, medians with their spread, tables, targets, pages."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from machine import library_multiplies_bf16, machine

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build/hero"


@dataclass
class Target:
    """A figure that the project wants to reach. `values`: one a round. `ceiling`: what they would be if all of ours
    ran at the rate of matrix products measured on the same machine; empty where nobody reckoned it."""

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
    def within_reach(self) -> bool:
        return self.met or not self.ceiling or statistics.median(self.ceiling) >= self.bound

    def row(self) -> list[str]:
        sign = ">=" if self.at_least else "<="
        missed = "**missed**" if self.within_reach else "**missed**, out of this machine's reach"
        return [
            self.what,
            f"{sign} {self.bound:g}{self.unit}",
            spread(self.values, self.places, self.unit),
            spread(self.ceiling, self.places, self.unit) if self.ceiling else "",
            "met" if self.met else missed,
            f"`{self.command}`",
        ]


def spread(values: Sequence[float], places: int = 2, unit: str = "") -> str:
    """Such as "2.68 (2.37 to 2.84)"."""
    low, high, middle = min(values), max(values), statistics.median(values)
    shown = [f"{value:,.{places}f}" for value in (middle, low, high)]
    return shown[0] + unit + (f" ({shown[1]} to {shown[2]})" if len(values) > 1 else "")


def in_turn(
    contestants: Mapping[str, Callable[[], float]], rounds: int, unit: str, places: int = 0
) -> dict[str, list[float]]:
    """A B C, C B A, A B C ...: what every contestant returns, one value a round; nobody always goes first. Says how
    long the rest will take."""
    values: dict[str, list[float]] = {name: [] for name in contestants}
    begin, done = time.monotonic(), 0
    for number in range(rounds):
        for name in list(contestants)[:: -1 if number % 2 else 1]:
            values[name].append(contestants[name]())
            done += 1
            left = (time.monotonic() - begin) / done * (rounds * len(contestants) - done)
            rate = f"{values[name][-1]:,.{places}f} {unit}"
            note(f"round {number + 1}/{rounds}: {name}: {rate}, left {left:.0f} s")
    return values


def within_rounds(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """values / others, round by round."""
    return [value / other for value, other in zip(values, others, strict=True)]


def best_of(values: Mapping[str, Sequence[float]], prefix: str = "") -> str:
    """The contestant of the highest median among those whose names begin so."""
    return max((n for n in values if n.startswith(prefix)), key=lambda n: statistics.median(values[n]))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    return ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def types_of_transformers() -> tuple[list[str], str]:
    """The types in which transformers is measured on this processor, and why one is missing; empty where none is."""
    if library_multiplies_bf16():
        return ["fp32", "bf16"], ""
    return ["fp32"], (
        "Of transformers only fp32 is measured: without AVX-512 PyTorch multiplies bf16 number by number."
    )


def hero_json(*words: Any) -> Any:
    """What the program prints, as JSON. CalledProcessError where it fails; its message is on stderr."""
    command = [str(word) for word in (PROGRAM, *words)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def json_lines(*words: Any) -> list[Any]:
    """What another program prints, a JSON value a line."""
    command = [str(word) for word in words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def metrics(run: Path) -> list[dict[str, Any]]:
    """What `hero train` has noted of a run, step by step."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def parser(description: str | None, page: str, rounds: int = 5) -> argparse.ArgumentParser:
    """With the options of every benchmark."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--rounds", type=int, default=rounds, help="times that all are measured, in turn")
    made.add_argument("--quick", action="store_true", help="one round of little work, to see that it runs")
    made.add_argument("--out", type=Path, default=ROOT / "docs/results" / page, help="the page to write")
    made.add_argument("--targets", type=Path, help="file for what `bench/run.py` collects")
    return made


def own_command() -> str:
    """The command line of this script, from the checkout's root."""
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
    """The page: its command and machine, then `lines`; and the targets' file if one was asked for."""
    head = [f"# {title}", "", f"`{own_command()}` on {machine()}.", ""]
    text = "\n".join([*head, *lines, ""])
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text)
    if args.targets:
        args.targets.write_text(json.dumps([asdict(target) for target in targets]))
    print(text)
