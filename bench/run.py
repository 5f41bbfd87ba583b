"""Every benchmark, one after another, and docs/results/cpu.md: what is aimed at on CPUs and what was measured.
Where there is a GPU, bench/gpu.py too.

With `--only` the others' targets stay as they were measured on this machine; cpu.json beside the page keeps them.
`--quick` does little of each, to see that all run; its figures mean nothing. A benchmark that fails is named in the
page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from machine import gpu, has_bf16, machine
from rounds import ROOT, Target, note, own_command, table

HERE = Path(__file__).resolve().parent
# Title, page in docs/results, script with its words.
BENCHMARKS = [
    ("Training, small-qwen3", "train-speed-small-qwen3.md", ["train_speed.py", "--config", "small-qwen3"]),
    (
        "Training, small-deepseek",
        "train-speed-small-deepseek.md",
        ["train_speed.py", "--config", "small-deepseek"],
    ),
    ("A MoE layer alone, the routers alone", "layer-speed.md", ["layer_speed.py"]),
    ("Peak memory", "memory.md", ["memory.py"]),
    ("Generation", "generate-speed.md", ["generate_speed.py"]),
    ("Two processes", "parallel-speed.md", ["parallel_speed.py"]),
    ("Tokenizing", "tokenize-speed.md", ["tokenize_speed.py"]),
    ("How time grows", "scaling.md", ["scaling.py"]),
]


def run(words: list[str], page: Path, targets: Path, args: argparse.Namespace) -> str:
    """Runs a benchmark; what went wrong, or nothing."""
    more = ["--quick", "--out", str(page)] if args.quick else ["--out", str(page)]
    more += ["--image", str(page.with_suffix(".png"))] if args.quick and words[0] == "scaling.py" else []
    more += ["--rounds", str(args.rounds)] if args.rounds else []
    command = [sys.executable, str(HERE / words[0]), *words[1:], *more, "--targets", str(targets)]
    begin, last = time.monotonic(), ""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr or ():
            sys.stderr.write(line)
            last = line.strip() or last
    note(f"{' '.join(words)}: {time.monotonic() - begin:.0f} s, exit status {process.returncode}")
    return "" if process.returncode == 0 else last or f"exit status {process.returncode}"


def operators(args: argparse.Namespace, folder: Path, device: str) -> str:
    """Timings of every operator, fused and plain, as google-benchmark prints them. What went wrong, or nothing."""
    seconds = 0.001 if args.quick else 0.05
    command = [ROOT / "build/bench_ops", f"--device={device}", f"--benchmark_min_time={seconds}"]
    with (folder / f"operators-{device}.txt").open("w") as file:
        done = subprocess.run(command, check=False, stdout=file, stderr=subprocess.DEVNULL)
    return "" if done.returncode == 0 else f"build/bench_ops: exit status {done.returncode}"


def measured_before(kept: Path) -> dict[str, list[Target]]:
    """By benchmark, what earlier calls measured on this machine; nothing where the file is another machine's."""
    if not kept.exists():
        return {}
    before = json.loads(kept.read_text())
    if before["machine"] != machine():
        note(f"{kept}: measured on {before['machine']}, not kept")
        return {}
    return {title: [Target(**target) for target in targets] for title, targets in before["targets"].items()}


def keep(measured: dict[str, list[Target]], kept: Path) -> None:
    values = {title: [asdict(target) for target in targets] for title, targets in measured.items()}
    kept.write_text(json.dumps({"machine": machine(), "targets": values}, indent=1) + "\n")


def page(
    measured: dict[str, list[Target]], failures: dict[str, str], args: argparse.Namespace, folder: Path
) -> str:
    targets = [target for title, _, _ in BENCHMARKS for target in measured.get(title, [])]
    links = [f"[{title}]({name})" for title, name, _ in BENCHMARKS if title in measured]
    profile = folder / "cpu-profile.md"
    missed, met = [t for t in targets if not t.met], [t for t in targets if t.met]
    lines = ["# Targets on CPUs", "", f"`{own_command()}` on {machine()}."]
    if args.quick:
        lines += ["", "**A trial (`--quick`): too little work for any figure here to mean something.**"]
    if not has_bf16():
        lines += [
            "",
            "The targets are meant for two cores that multiply bf16 (avx512_bf16 or AMX). **This processor does not**: "
            "bf16 operands are widened in registers and multiplied in fp32, about as fast as fp32 itself, while the "
            "fp32 that transformers falls back on loses nothing.",
        ]
    counts = f"{len(met)} of {len(targets)} met" + (
        f", {len(missed)} missed: they come first" if missed else ""
    )
    lines += [
        "",
        counts
        + ". Medians, with the range over rounds; ratios within rounds. At full rate: what the figure would be "
        "if all of ours ran at the rate of matrix products measured on this machine; a target above it is out of reach "
        "here."
        + (f" Where the time of a step goes: [{profile.name}]({profile.name})." if profile.exists() else ""),
    ]
    head = ["what", "target", "measured", "at full rate", "", "command"]
    lines += ["", *table(head, [target.row() for target in missed + met])]
    if failures:
        lines += ["", "Did not run:", "", *(f"- {title}: {reason}" for title, reason in failures.items())]
    lines += ["", "Each with its whole table: " + "; ".join(links) + ".", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little of each; pages go to --folder")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of every benchmark; 0: its own default")
    parser.add_argument("--only", nargs="+", help="scripts to run, such as memory.py")
    parser.add_argument(
        "--folder", type=Path, help="where the pages go; docs/results, with --quick build/bench-quick"
    )
    args = parser.parse_args()
    folder = args.folder or ROOT / ("build/bench-quick" if args.quick else "docs/results")
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "cpu.json"
    measured = measured_before(kept) if args.only and not args.quick else {}
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as work:
        for number, (title, name, words) in enumerate(BENCHMARKS, 1):
            if args.only and words[0] not in args.only:
                continue
            note(f"[{number}/{len(BENCHMARKS)}] {title}")
            found = Path(work) / f"{number}.json"
            if reason := run(words, folder / name, found, args):
                failures[title] = reason
                note(f"{title}: {reason}")
                measured.pop(title, None)
                continue
            measured[title] = [Target(**values) for values in json.loads(found.read_text())]
            if not args.quick:
                keep(measured, kept)
        if (gpu() or args.quick) and (not args.only or "gpu.py" in args.only):
            note("The paper's model on a GPU")
            words = ["gpu.py", "--device", "cuda" if gpu() else "cpu"]
            if reason := run(words, folder / "gpu.md", Path(work) / "gpu.json", args):
                failures["The paper's model on a GPU"] = reason
    for device in [] if args.only else ["cpu", "cuda"] if gpu() else ["cpu"]:
        if reason := operators(args, folder if args.quick else ROOT / "build", device):
            failures[f"Operators, {device}"] = reason
    text = page(measured, failures, args, folder)
    (folder / "cpu.md").write_text(text)
    print(text)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
