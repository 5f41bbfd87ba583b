"""Runs every benchmark and writes docs/results/cpu.md: targets on CPUs and measurements, by processor. With a
GPU, also runs bench/gpu.py, gpu_losses.py and gpu_peers.py.

The results of this processor are in docs/results/PROCESSOR: the folder of its instruction set, or one of its own if
that has those of another processor. With `--only`, the other benchmarks keep their results (cpu.json). `--quick`
reproduces the essential ones in one round each, in less than 20 minutes. `--trial` does little work, to check that all
benchmarks run; its results are meaningless. The page lists failed benchmarks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from machine import gpu, machine, processor_folder
from results import Measured, Processor, load, load_all, overview
from rounds import ROOT, Target, note, results_folder

HERE = Path(__file__).resolve().parent
# Title, page, script with its arguments.
BENCHMARKS = [
    ("Training, small-qwen3", "train-speed-small-qwen3.md", ["train_speed.py", "--config", "small-qwen3"]),
    (
        "Training, small-deepseek",
        "train-speed-small-deepseek.md",
        ["train_speed.py", "--config", "small-deepseek"],
    ),
    ("A MoE layer alone, the routers alone", "layer-speed.md", ["layer_speed.py"]),
    ("Peak memory", "memory.md", ["memory.py"]),
    ("A model of two billion parameters", "offload.md", ["offload.py"]),
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
# Run with a GPU; a page of their own name.
GPU_BENCHMARKS = {
    "Losses on a GPU and on the CPU": "gpu_losses.py",
    "HERO and baseline on a GPU": "gpu.py",
    "Training on a GPU, other projects": "gpu_peers.py",
}
PAGES = [(title, page) for title, page, _ in BENCHMARKS]
# Of --quick: training and generation next to other projects, the routers' cost, memory and latency; with options that
# save time.
ESSENTIAL = {
    "train-speed-small-qwen3.md": ["--min-relative-speed", "1", "--pairs", "24"],
    "layer-speed.md": [],
    "memory.md": ["--models", "narrow", "--sequence", "256"],
    "generate-peers.md": ["--essential"],
    "latency.md": [],
}


def run(words: list[str], page: Path, targets: Path, args: argparse.Namespace) -> str:
    """Runs a benchmark; returns the error, or an empty string."""
    more = ["--quick", "--out", str(page)] if args.trial else ["--out", str(page)]
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


def measured_before(folder: Path) -> Processor:
    """Earlier results of this machine in the folder; empty if they are from a different machine."""
    found = load(folder)
    if found and found.machine == machine():
        return found
    if found:
        note(f"{folder}/cpu.json: measured on {found.machine}, ignored")
    return Processor(folder, machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one round of the essential benchmarks, in less than 20 minutes"
    )
    parser.add_argument("--trial", action="store_true", help="little work per benchmark; meaningless results")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of every benchmark; 0: its own default")
    parser.add_argument("--only", nargs="+", help="scripts to run, for example memory.py")
    parser.add_argument(
        "--results",
        type=Path,
        help="output folder (default: docs/results; with --quick or --trial build/bench-quick, with HERO_GEMM "
        "build/bench-HERO_GEMM)",
    )
    args = parser.parse_args()
    short = args.quick or args.trial
    results = args.results or results_folder(short)
    folder = processor_folder(results)
    folder.mkdir(parents=True, exist_ok=True)
    mine = measured_before(folder) if args.only else Processor(folder, machine())
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as work:
        for number, (title, name, words) in enumerate(BENCHMARKS, 1):
            if (args.only and words[0] not in args.only) or (args.quick and name not in ESSENTIAL):
                continue
            note(f"[{number}/{len(BENCHMARKS)}] {title}")
            found = Path(work) / f"{number}.json"
            more = ESSENTIAL[name] if args.quick else []
            if reason := run([*words, *more], folder / name, found, args):
                failures[title] = reason
                note(f"{title}: {reason}")
                mine.benchmarks.pop(title, None)
            else:
                targets = [Target(**values) for values in json.loads(found.read_text())]
                mine.benchmarks[title] = Measured(date.today().isoformat(), targets)
            mine.save()
        for title, script in GPU_BENCHMARKS.items() if gpu() or args.trial else ():
            if args.only and script not in args.only:
                continue
            note(title)
            words = [script, "--device", "cuda" if gpu() else "cpu"]
            page = script.removesuffix(".py").replace("_", "-")
            if reason := run(words, results / f"{page}.md", Path(work) / f"{page}.json", args):
                failures[title] = reason
    for device in [] if args.only or args.quick else ["cpu", "cuda"] if gpu() else ["cpu"]:
        if reason := operators(args, folder if args.trial else ROOT / "build", device):
            failures[f"Operators, {device}"] = reason
    text = overview(load_all(results), PAGES, failures, args.trial)
    (results / "cpu.md").write_text(text)
    print(text)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
