"""Training tokens per second of `hero train`, baseline and HERO, against transformers, in one run and in turn.

Writes docs/results/train-speed.md. Rounds alternate all contestants (A B C A B C ...), so that a machine whose speed
drifts is fair to all; figures are medians with the range over rounds.
"""
import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import machine

ROOT = Path(__file__).resolve().parent.parent
TOKENS_A_STEP = 4 * 512


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


def run_hero(folder: Path, prefix: Path, config: str, overlay: str, steps: int) -> float:
    """Median tokens per second of `hero train` after its first two steps."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    command = [ROOT / "build/hero", "train", "--config", ROOT / f"configs/{config}.toml", "--config", ROOT / f"configs/{overlay}.toml"]
    command += ["--data", prefix, "--run", run, f"--train.steps={steps + 2}", "--checkpoint.every=0", "--optim.warmup_steps=1"]
    subprocess.run([str(word) for word in command], check=True, stderr=subprocess.DEVNULL)
    lines = (run / "metrics.jsonl").read_text().splitlines()[2:]
    return statistics.median(json.loads(line)["tokens_per_second"] for line in lines)


def run_hf(config: str, dtype: str, experts: str, steps: int) -> float:
    """Median tokens per second of bench/hf_train.py."""
    command = [sys.executable, ROOT / "bench/hf_train.py", "--config", ROOT / f"configs/{config}.toml"]
    command += ["--dtype", dtype, "--experts", experts, "--steps", str(steps)]
    out = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout
    return statistics.median(json.loads(out.splitlines()[-1])["tokens_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="small-qwen3")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/train-speed.md")
    args = parser.parse_args()
    contestants = {
        "hero train, baseline": lambda f, p: run_hero(f, p, args.config, "baseline", args.steps),
        "hero train, HERO": lambda f, p: run_hero(f, p, args.config, "hero", args.steps),
        "transformers, bf16, grouped_mm": lambda f, p: run_hf(args.config, "bf16", "grouped_mm", max(4, args.steps // 3)),
        "transformers, bf16, eager": lambda f, p: run_hf(args.config, "bf16", "eager", max(4, args.steps // 3)),
        "transformers, fp32, grouped_mm": lambda f, p: run_hf(args.config, "fp32", "grouped_mm", max(4, args.steps // 3)),
    }
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    with tempfile.TemporaryDirectory() as folder:
        prefix = write_tokens(Path(folder), 8192)
        for number in range(args.rounds):
            for name, contestant in contestants.items():
                rates[name].append(contestant(Path(folder), prefix))
                print(f"round {number + 1}/{args.rounds}: {name}: {rates[name][-1]:,.0f} tokens/s", flush=True)

    best = max((name for name in rates if name.startswith("transformers")), key=lambda name: statistics.median(rates[name]))
    rows = []
    for name, values in rates.items():
        ratios = [value / other for value, other in zip(values, rates[best])]
        rows.append(f"| {name} | {statistics.median(values):,.0f} | {min(values):,.0f} to {max(values):,.0f} "
                    f"| {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |")
    overhead = [b / h - 1 for b, h in zip(rates["hero train, baseline"], rates["hero train, HERO"])]
    text = "\n".join([
        f"# Training speed, `{args.config}`, {TOKENS_A_STEP} tokens a step",
        "",
        f"`.venv/bin/python bench/train_speed.py --config {args.config} --rounds {args.rounds} --steps {args.steps}` on "
        f"{machine()}; ratios within rounds to {best}, the fastest of its settings here.",
        "",
        "| | tokens/s, median | range over rounds | ratio, median (range) |",
        "|---|---|---|---|",
        *rows,
        "",
        f"HERO changes the baseline's step time by {100 * statistics.median(overhead):+.1f}% "
        f"({100 * min(overhead):+.1f}% to {100 * max(overhead):+.1f}%).",
        "",
    ])
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text)
    print("\n" + text)


if __name__ == "__main__":
    main()
