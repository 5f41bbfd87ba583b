"""HERO against the baseline on a GPU, at the layer shapes of the paper's model.

Writes docs/results/gpu.md: the routers alone; training steps and forward passes of one pipeline stage of the paper,
as many of its 15 layers as fit; and training with 8 of 64 experts, which has enough rows per expert to be limited by
arithmetic. Steps and passes are replayed CUDA graphs: HERO's additional kernels cost what they compute, not their
launches. `--device cpu --quick` runs everything without a GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from paper import CONFIG, ON_GPU, layers_that_fit, router_times
from rounds import (
    ROOT,
    Target,
    hero_json,
    json_lines,
    note,
    own_command,
    parse_on_gpu,
    parser,
    ratios_per_round,
    spread,
    table,
    target_table,
    write_page,
)

# `--quick`: the paper's history depth in a tiny model.
SMALL = [
    "--model.hidden_size=64", "--model.num_attention_heads=2", "--model.num_key_value_heads=2",
    "--model.q_lora_rank=32", "--model.kv_lora_rank=32", "--model.n_routed_experts=16",
    "--model.moe_intermediate_size=32", "--model.vocab_size=256", "--train.sequence=128",
]  # fmt: skip
STAGE_LAYERS = 15
WIDE_LAYERS, WIDE_BATCH = 6, 4  # of the model with 8 of 64 experts
WIDE = ["--model.n_routed_experts=64", "--model.num_experts_per_tok=8"]
SHOWN = {"forward_ms": "forward pass", "step_ms": "step", "peak_memory_mib": "peak memory"}
MAX_OVERHEAD = {"forward_ms": 1.5, "step_ms": 0.64, "peak_memory_mib": 0.44}  # percent, HERO over baseline


def cost_table(
    args: argparse.Namespace, layers: int, batch: int, micro_batches: int, *more: Any
) -> dict[str, Any]:
    words = ["--config", CONFIG, *more, *(SMALL if args.quick else []), f"--train.device={args.device}"]
    words += [f"--model.num_hidden_layers={layers}", "--router.stages=1", "--train.cuda_graph=true"]
    words += [f"--train.micro_batch={batch}", f"--train.global_batch={batch * micro_batches}"]
    words += ["--rounds", args.rounds, "--steps", args.steps, "--json"]
    note(f"hero bench cost-table {' '.join(str(word) for word in words)}")
    return hero_json("bench", "cost-table", *words)


def comparison_table(found: dict[str, Any]) -> list[str]:
    """A table with a row per measured quantity: baseline, HERO, HERO vs. baseline."""
    shown = []
    for key, name in [*SHOWN.items(), ("product_share", "share of GEMM throughput")]:
        if not (column := found["columns"][key]):
            continue
        unit, scale = {"peak_memory_mib": (" MiB", 1.0), "product_share": ("%", 100.0)}.get(key, (" ms", 1.0))
        sides = [
            spread([scale * v for v in column[side]["rounds"]], 1, unit) for side in ("baseline", "hero")
        ]
        shown.append([name, *sides, spread(column["difference"]["percent_rounds"], 2, "%")])
    return table(["", "baseline", "HERO", "HERO over baseline"], shown)


def overheads(found: dict[str, Any], what: str, keys: Sequence[str]) -> list[Target]:
    return [
        Target(
            f"{SHOWN[key]}, HERO over baseline, {what}",
            MAX_OVERHEAD[key],
            found["columns"][key]["difference"]["percent_rounds"],
            own_command(),
            at_least=False,
            unit="%",
        )
        for key in keys
    ]


def routers(args: argparse.Namespace) -> tuple[list[str], list[Target]]:
    words = ["--device", args.device, "--rounds", args.rounds]
    words += ["--layers", 4, "--tokens", 256, "--calls", 1] if args.quick else ["--calls", 20]
    [found] = json_lines(ROOT / "build/bench_router_step", *words)
    seconds = found["seconds"]
    over = ratios_per_round(seconds["hero"], seconds["baseline"])
    lines = [
        "## Routers only",
        "",
        *router_times(found),
        "",
        f"HERO over baseline: {spread(over)}.",
        "",
    ]
    return lines, [Target("router step, HERO over baseline", 1.6, over, own_command(), at_least=False)]


def training(args: argparse.Namespace, layers: int) -> tuple[list[str], list[Target]]:
    found = cost_table(args, layers, 1, args.micro_batches)
    about = (
        f"{args.micro_batches} micro-batches per step; the forward pass is timed by itself, without a graph."
    )
    lines = [f"## Training, {layers} layers", "", about, "", *comparison_table(found), ""]
    return lines, overheads(found, f"{layers} layers in training", ["step_ms", "peak_memory_mib"])


def forward(args: argparse.Namespace, layers: int) -> tuple[list[str], list[Target]]:
    found = cost_table(args, layers, 1, 1, "--forward")
    lines = [f"## Forward passes, {layers} layers", "", *comparison_table(found), ""]
    return lines, overheads(found, f"{layers} layers, forward passes only", ["forward_ms"])


def wide(args: argparse.Namespace, layers: int) -> tuple[list[str], list[Target]]:
    """Training with learned routing and many rows per expert."""
    batch = 1 if args.quick else WIDE_BATCH
    found = cost_table(args, layers, batch, args.micro_batches, *WIDE)
    title = f"## Training with 8 of 64 experts, {layers} layers"
    lines = [
        title,
        "",
        f"{args.micro_batches} micro-batches of {batch} sequences per step.",
        "",
    ]
    share = [100 * value for value in found["columns"]["product_share"]["hero"]["rounds"]]
    target = Target("share of GEMM throughput, 8 of 64 experts", 40, share, own_command(), unit="%", places=1)
    return [*lines, *comparison_table(found), ""], [target, *overheads(found, "8 of 64 experts", ["step_ms"])]


def main() -> None:
    args_parser = parser(__doc__, "gpu.md", rounds=3)
    args_parser.add_argument("--steps", type=int, default=8, help="timed steps per process")
    args_parser.add_argument(
        "--micro-batches", type=int, default=8, help="micro-batches per step, 4,096 tokens each"
    )
    args_parser.add_argument(
        "--layers", type=int, default=0, help="layers to train; 0: as many as fit, up to 15"
    )
    args, device = parse_on_gpu(args_parser)
    layers, stage, wide_layers = args.layers, STAGE_LAYERS, WIDE_LAYERS
    if args.quick:
        args.rounds, args.steps, args.micro_batches, layers, stage, wide_layers = 1, 1, 2, 4, 6, 4
    elif not layers:
        import torch

        words = ["--train.micro_batch=1", f"--train.global_batch={args.micro_batches}", "--router.stages=1"]
        memory = torch.cuda.get_device_properties(0).total_memory
        layers = min(STAGE_LAYERS, layers_that_fit(words, memory, ON_GPU))
    lines, targets = [], []
    for part in (
        routers(args),
        training(args, layers),
        forward(args, stage),
        wide(args, wide_layers),
    ):
        lines += part[0]
        targets += part[1]
    about = [
        f"`configs/paper-8b.toml` in bf16 on {device}, sequences of 4,096 tokens, learned routing, CUDA graphs; "
        "median (range over rounds).",
        "",
    ]
    write_page(args, "HERO and baseline on a GPU", [*about, *target_table(targets), "", *lines], targets)


if __name__ == "__main__":
    main()
