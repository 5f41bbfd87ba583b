"""Peak memory of training, HERO minus baseline, in the paper's shapes, against its prediction.

Writes docs/results/memory.md. Two models: the paper's first layers, as many as fit in this machine's memory, and
all of its layers with narrow experts, which leaves routers and history as they are. Every measurement is a process
of its own (`hero bench cost-table`). Predicted are the history's weights with master copy, gradient and moments, and
the history itself.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from paper import CONFIG, ON_CPU, layers_that_fit
from rounds import Target, hero_json, note, own_command, parser, spread, table, write_page

MIB = 1 << 20
# Two micro-batches: gradients and activations are there together, so the peak holds all that is predicted.
# Nothing is saved, so nothing is copied for it.
BATCH = ["--train.device=cpu", "--train.micro_batch=1", "--train.global_batch=2", "--checkpoint.every=0"]


def predicted(layers: int, stages: int, experts: int, tokens: int) -> dict[str, float]:
    """MiB of a bf16 run, by what it is for."""
    sizes = [layers // stages + (s < layers % stages) for s in range(stages)]
    weights = sum(experts * experts * size * (size - 1) // 2 for size in sizes)
    slots = sum(size - 1 for size in sizes)
    return {
        "weights of the history (bf16 leaf 2, fp32 master 4, gradient 4, moments 8 bytes each)": 18
        * weights
        / MIB,
        "history (bf16)": 2 * tokens * slots * experts / MIB,
    }


def available_mib() -> float:
    """MemAvailable of /proc/meminfo."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("MemAvailable"))


def measure(layers: int, words: list[str], rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """MiB of baseline and HERO, each round's, by what is counted."""
    found: dict[str, Any] = hero_json(
        "bench", "cost-table", "--config", CONFIG, "--layers", layers, *words,
        "--rounds", rounds, "--steps", 1, "--warmup", 1, "--json",
    )  # fmt: skip
    columns = found["columns"]
    return {
        name: (columns[key]["baseline"]["rounds"], columns[key]["hero"]["rounds"])
        for name, key in (("bytes of tensors", "tensor_peak_mib"), ("resident memory", "peak_memory_mib"))
    }


def main() -> None:
    args_parser = parser(__doc__, "memory.md", rounds=2)
    args_parser.add_argument("--sequence", type=int, default=1024)
    less = "less than the paper's leaves room for layers"
    args_parser.add_argument("--vocab-size", type=int, default=8192, help=less)
    args = args_parser.parse_args()
    if args.quick:
        args.rounds, args.sequence, args.vocab_size = 1, 128, 1024
    common = [*BATCH, f"--train.sequence={args.sequence}", f"--model.vocab_size={args.vocab_size}"]
    narrow = [*common, "--model.moe_intermediate_size=16"]
    models = [("narrow experts (16)", 6 if args.quick else 30, narrow)]
    if not args.quick:
        models.insert(
            0, ("the paper's layers", layers_that_fit(common, available_mib() * MIB, ON_CPU), common)
        )
    rows, targets = [], []
    for name, layers, words in models:
        parts = predicted(layers, 2, 128, args.sequence)
        expected = sum(parts.values())
        shown = ", ".join(f"{what}: {value:.2f} MiB" for what, value in parts.items())
        note(f"{name}: {layers} layers; predicted: {shown}")
        for what, (baseline, hero) in measure(layers, words, args.rounds).items():
            extra = [a - b for a, b in zip(hero, baseline, strict=True)]
            off = [value - expected for value in extra]
            sides = [spread(side, 2) for side in (baseline, hero)]
            counted = [spread(extra), f"{expected:.2f}", f"{statistics.median(off):+.2f}"]
            rows.append([f"{name}, {layers}", what, *sides, *counted])
            if what == "bytes of tensors":
                targets.append(
                    Target(
                        f"peak memory, HERO minus baseline, off its prediction: {name}, {layers}",
                        1.0,
                        [abs(value) for value in off],
                        own_command(),
                        at_least=False,
                        unit=" MiB",
                    )
                )
    write_page(
        args,
        "Peak memory, HERO minus baseline",
        [
            f"`configs/paper-8b.toml` in two stages, bf16, {args.vocab_size:,} tokens of vocabulary, two "
            f"micro-batches of {args.sequence:,} tokens; MiB, median (range over {args.rounds} rounds).",
            "",
            *table("model, layers|counted|baseline|HERO|HERO minus baseline|predicted|off".split("|"), rows),
            "",
            "Predicted: 18 bytes for each of the history's weights (bf16 leaf 2, fp32 master 4, fp32 gradient 4, "
            "moments 8) and 2 for each number of the history that is kept for later layers.",
            "",
            "The bytes of tensors are counted one by one. Resident memory counts pages, those of the operators' own "
            "temporaries and of holes in the heap among them.",
        ],
        targets,
    )


if __name__ == "__main__":
    main()
