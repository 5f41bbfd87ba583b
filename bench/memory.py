"""Peak training memory, HERO minus baseline, in the paper's shapes, against the prediction.

Writes docs/results/PROCESSOR/memory.md. Two models: as many of the paper's layers as fit in memory, and all layers with
narrow experts, which does not change routers and history. Every measurement runs in a separate process (`hero
bench cost-table`). The prediction covers the history weights with master copy, gradient and moments, and the
history.
"""

from __future__ import annotations

import statistics
from typing import Any

from machine import available_kib
from paper import CONFIG, ON_CPU, layers_that_fit
from rounds import Target, cpu_page, hero_json, note, own_command, parser, spread, table, write_page

MIB = 1 << 20
MODELS = ["paper", "narrow"]
# Two micro-batches: gradients and activations exist at the same time, so the peak includes everything
# predicted. No checkpoints: no copies for saving.
BATCH = ["--train.device=cpu", "--train.micro_batch=1", "--train.global_batch=2", "--checkpoint.every=0"]


def predicted(layers: int, stages: int, experts: int, tokens: int) -> dict[str, float]:
    """MiB of a bf16 run by purpose."""
    sizes = [layers // stages + (s < layers % stages) for s in range(stages)]
    weights = sum(experts * experts * size * (size - 1) // 2 for size in sizes)
    slots = sum(size - 1 for size in sizes)
    return {
        "weights of the history (bf16 leaf 2, fp32 master 4, gradient 4, moments 8 bytes each)": 18
        * weights
        / MIB,
        "history (bf16)": 2 * tokens * slots * experts / MIB,
    }


def measure(layers: int, words: list[str], rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """MiB of baseline and HERO per round, by kind of memory."""
    found: dict[str, Any] = hero_json(
        "bench", "cost-table", "--config", CONFIG, "--layers", layers, *words,
        "--rounds", rounds, "--steps", 1, "--warmup", 1, "--json",
    )  # fmt: skip
    columns = found["columns"]
    return {
        name: (columns[key]["baseline"]["rounds"], columns[key]["hero"]["rounds"])
        for name, key in (("tensor memory", "tensor_peak_mib"), ("resident memory", "peak_memory_mib"))
    }


def main() -> None:
    args_parser = parser(__doc__, cpu_page("memory.md"), rounds=2)
    args_parser.add_argument("--sequence", type=int, default=1024)
    less = "smaller than the paper's, to fit more layers"
    args_parser.add_argument("--vocab-size", type=int, default=8192, help=less)
    args_parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, help="default: both")
    args = args_parser.parse_args()
    if args.quick:
        args.rounds, args.sequence, args.vocab_size, args.models = 1, 128, 1024, ["narrow"]
    common = [*BATCH, f"--train.sequence={args.sequence}", f"--model.vocab_size={args.vocab_size}"]
    narrow = [*common, "--model.moe_intermediate_size=16"]
    models = []
    if "paper" in args.models:
        models.append(("the paper's layers", layers_that_fit(common, available_kib() * 1024, ON_CPU), common))
    if "narrow" in args.models:
        models.append(("narrow experts (16)", 6 if args.quick else 30, narrow))
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
            if what == "tensor memory":
                targets.append(
                    Target(
                        f"peak memory, HERO minus baseline, prediction error: {name}, {layers}",
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
            f"`configs/paper-8b.toml` in two stages, bf16, vocabulary of {args.vocab_size:,} tokens, two "
            f"micro-batches of {args.sequence:,} tokens; MiB, median (range over {args.rounds} rounds).",
            "",
            *table("model, layers|memory|baseline|HERO|HERO minus baseline|predicted|error".split("|"), rows),
            "",
            "Predicted: 18 bytes per history weight (bf16 leaf 2, fp32 master 4, fp32 gradient 4, moments 8) and 2 "
            "bytes per history element stored for later layers.",
            "",
            "Tensor memory counts every tensor. Resident memory counts pages, including temporaries of operators and "
            "heap fragmentation.",
        ],
        targets,
    )


if __name__ == "__main__":
    main()
