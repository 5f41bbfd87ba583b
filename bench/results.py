"""The results of the benchmarks by processor: `PROCESSOR/cpu.json` in a results folder, and the page of all targets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from machine import FOLDER, NAMES, folder_name
from rounds import Target, table


@dataclass
class Measured:
    """A benchmark's targets on one processor."""

    date: str
    targets: list[Target]


@dataclass
class Processor:
    """All benchmarks of a processor, by title; `folder` has their pages."""

    folder: Path
    machine: str
    benchmarks: dict[str, Measured] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return folder_name(self.folder.name)

    @property
    def targets(self) -> list[Target]:
        return [target for measured in self.benchmarks.values() for target in measured.targets]

    def save(self) -> None:
        values = {
            "machine": self.machine,
            "benchmarks": {title: asdict(measured) for title, measured in self.benchmarks.items()},
        }
        (self.folder / "cpu.json").write_text(json.dumps(values, indent=1) + "\n")


def load(folder: Path) -> Processor | None:
    """The results in a folder of one processor; None if there are none."""
    kept = folder / "cpu.json"
    if not kept.exists():
        return None
    values = json.loads(kept.read_text())
    benchmarks = {
        title: Measured(found["date"], [Target(**target) for target in found["targets"]])
        for title, found in values["benchmarks"].items()
    }
    return Processor(folder, values["machine"], benchmarks)


def load_all(results: Path) -> list[Processor]:
    """The results of all processors, by instruction set in the order of NAMES."""
    sets = list(NAMES)
    folders = sorted(
        (sets.index(match[1]), path.name, path)
        for path in results.iterdir()
        if path.is_dir() and (match := FOLDER.fullmatch(path.name))
    )
    return [found for _, _, path in folders if (found := load(path))]


def processors_table(processors: Sequence[Processor]) -> list[str]:
    rows = []
    for processor in processors:
        dates = sorted({measured.date for measured in processor.benchmarks.values()})
        profile = processor.folder / "cpu-profile.md"
        rows.append(
            [
                processor.name,
                processor.machine,
                " to ".join(dict.fromkeys(dates[:1] + dates[-1:])),
                f"{sum(target.met for target in processor.targets)} of {len(processor.targets)}",
                f"[profile of a training step]({processor.folder.name}/{profile.name})"
                if profile.exists()
                else "",
            ]
        )
    return table(["", "processor", "measured", "targets met", ""], rows)


def missed(processors: Sequence[Processor]) -> Iterator[str]:
    for processor in processors:
        for target in processor.targets:
            if not target.met:
                reach = "" if target.reachable else "; not reachable on this machine"
                yield f"- {processor.name}: {target.what}: {target.measured}, target {target.limit}{reach}"


def benchmark_section(title: str, page: str, processors: Sequence[Processor]) -> list[str]:
    """The targets of a benchmark, rows of the same metric together, and where the full results are."""
    found = [
        (processor, processor.benchmarks[title]) for processor in processors if title in processor.benchmarks
    ]
    rows: dict[str, list[list[str]]] = {}
    sources = []
    for processor, measured in found:
        commands = dict.fromkeys(f"`{target.command}`" for target in measured.targets)
        link = f"[{processor.folder.name}/{page}]({processor.folder.name}/{page})"
        sources.append(f"- {processor.name}, {measured.date}: {', '.join([link, *commands])}")
        for t in measured.targets:
            rows.setdefault(t.what, []).append(
                [t.limit, t.measured, t.at_gemm_throughput, processor.name, t.result]
            )
    if not found:
        return []
    head = ["metric", "target", "measured", "at GEMM throughput", "processor", ""]
    lines = [[what if i == 0 else "", *row] for what, group in rows.items() for i, row in enumerate(group)]
    return ["", f"## {title}", "", *([*table(head, lines), ""] if lines else []), *sources]


def overview(
    processors: Sequence[Processor],
    benchmarks: Sequence[tuple[str, str]],
    failures: dict[str, str],
    trial: bool,
) -> str:
    """The page of all targets. `benchmarks`: title and page; `failures`: of this run, by title."""
    lines = ["# Targets on CPUs", ""]
    if trial:
        lines += ["**Trial run (`--trial`): results are meaningless.**", ""]
    lines += [
        "Written by `make bench`. Median (range over rounds); ratios per round, of measurements that alternate in one "
        "run. At GEMM throughput: the value if our code ran at the GEMM throughput measured on this machine; a target "
        "above it is not reachable there. Results are from the code of their date.",
        "",
        *processors_table(processors),
    ]
    if below := list(missed(processors)):
        lines += ["", "## Missed", "", *below]
    if failures:
        lines += ["", "## Failed", "", *(f"- {title}: {reason}" for title, reason in failures.items())]
    for title, page in benchmarks:
        lines += benchmark_section(title, page, processors)
    return "\n".join([*lines, ""])
