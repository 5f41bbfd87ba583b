"""Runs every benchmark and writes docs/results/cpu.md: targets on CPUs and measurements. With a GPU, also
runs bench/gpu.py.

With `--only`, the targets of the other benchmarks keep their values measured on this machine, stored in
cpu.json next to the page. `--quick` reproduces the essential ones in one round each, in less than 20 minutes.
`--trial` does little work, to check that all benchmarks run; its results are meaningless. The page lists failed
benchmarks.
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
# Title, page in docs/results, script with its arguments.
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
    ("Generation, other engines", "generate-peers.md", ["generate_peers.py"]),
    ("Serving, other servers", "serve-speed.md", ["serve_speed.py"]),
    ("Two processes", "parallel-speed.md", ["parallel_speed.py"]),
    ("Tokenizing", "tokenize-speed.md", ["tokenize_speed.py"]),
    ("Latency", "latency.md", ["latency.py"]),
    ("Muon", "muon-speed.md", ["muon_speed.py"]),
    ("Training features", "feature-cost.md", ["feature_cost.py"]),
    ("How time grows", "scaling.md", ["scaling.py"]),
]
# Of --quick: training and generation next to other projects, the routers' cost, memory and latency.
ESSENTIAL = ["train-speed-small-qwen3.md", "layer-speed.md", "memory.md", "generate-peers.md", "latency.md"]


def run(words: list[str], page: Path, targets: Path, args: argparse.Namespace) -> str:
    """Runs a benchmark; returns the error, or an empty string."""
    more = ["--quick", "--out", str(page)] if args.trial else ["--out", str(page)]
    more += ["--image", str(page.with_suffix(".png"))] if args.trial and words[0] == "scaling.py" else []
    rounds = args.rounds or int(args.quick)
    more += ["--rounds", str(rounds)] if rounds else []
    command = [sys.executable, str(HERE / words[0]), *words[1:], *more, "--targets", str(targets)]
    begin, last = time.monotonic(), ""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr or ():
            sys.stderr.write(line)
            last = line.strip() or last
    note(f"{' '.join(words)}: {time.monotonic() - begin:.0f} s, exit status {process.returncode}")
    return "" if process.returncode == 0 else last or f"exit status {process.returncode}"


def operators(args: argparse.Namespace, folder: Path, device: str) -> str:
    """Writes google-benchmark timings of every operator, fused and reference; returns the error, or an empty
    string."""
    seconds = 0.001 if args.trial else 0.05
    command = [ROOT / "build/bench_ops", f"--device={device}", f"--benchmark_min_time={seconds}"]
    with (folder / f"operators-{device}.txt").open("w") as file:
        done = subprocess.run(command, check=False, stdout=file, stderr=subprocess.DEVNULL)
    return "" if done.returncode == 0 else f"build/bench_ops: exit status {done.returncode}"


def measured_before(kept: Path) -> dict[str, list[Target]]:
    """Earlier measurements on this machine by benchmark; empty if the file is from a different machine."""
    if not kept.exists():
        return {}
    before = json.loads(kept.read_text())
    if before["machine"] != machine():
        note(f"{kept}: measured on {before['machine']}, ignored")
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
    if args.trial:
        lines += ["", "**Trial run (`--trial`): results are meaningless.**"]
    if not has_bf16():
        lines += [
            "",
            "The targets are for two cores with bf16 instructions (avx512_bf16 or AMX). **This CPU has none**: bf16 "
            "operands are converted to fp32 in registers, about as fast as fp32 itself, while transformers "
            "falls back "
            "to fp32 without loss.",
        ]
    counts = f"{len(met)} of {len(targets)} met" + (
        f", {len(missed)} missed (listed first)" if missed else ""
    )
    lines += [
        "",
        counts
        + ". Median (range over rounds); ratios per round. At GEMM throughput: the value if our code ran at the GEMM "
        "throughput measured on this machine; a target above it is not reachable here."
        + (f" Profile of a step: [{profile.name}]({profile.name})." if profile.exists() else ""),
    ]
    head = ["metric", "target", "measured", "at GEMM throughput", "", "command"]
    lines += ["", *table(head, [target.row() for target in missed + met])]
    if failures:
        lines += ["", "Failed:", "", *(f"- {title}: {reason}" for title, reason in failures.items())]
    lines += ["", "Full results: " + "; ".join(links) + ".", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one round of the essential benchmarks, in less than 20 minutes"
    )
    parser.add_argument("--trial", action="store_true", help="little work per benchmark; meaningless results")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of every benchmark; 0: its own default")
    parser.add_argument("--only", nargs="+", help="scripts to run, for example memory.py")
    parser.add_argument(
        "--folder",
        type=Path,
        help="output folder (default: docs/results; with --quick or --trial build/bench-quick)",
    )
    args = parser.parse_args()
    short = args.quick or args.trial
    folder = args.folder or ROOT / ("build/bench-quick" if short else "docs/results")
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "cpu.json"
    measured = measured_before(kept) if args.only and not short else {}
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as work:
        for number, (title, name, words) in enumerate(BENCHMARKS, 1):
            if (args.only and words[0] not in args.only) or (args.quick and name not in ESSENTIAL):
                continue
            note(f"[{number}/{len(BENCHMARKS)}] {title}")
            found = Path(work) / f"{number}.json"
            if reason := run(words, folder / name, found, args):
                failures[title] = reason
                note(f"{title}: {reason}")
                measured.pop(title, None)
                continue
            measured[title] = [Target(**values) for values in json.loads(found.read_text())]
            if not short:
                keep(measured, kept)
        if (gpu() or args.trial) and (not args.only or "gpu.py" in args.only):
            note("The paper's model on a GPU")
            words = ["gpu.py", "--device", "cuda" if gpu() else "cpu"]
            if reason := run(words, folder / "gpu.md", Path(work) / "gpu.json", args):
                failures["The paper's model on a GPU"] = reason
    for device in [] if args.only or args.quick else ["cpu", "cuda"] if gpu() else ["cpu"]:
        if reason := operators(args, folder if args.trial else ROOT / "build", device):
            failures[f"Operators, {device}"] = reason
    text = page(measured, failures, args, folder)
    (folder / "cpu.md").write_text(text)
    print(text)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
