"""Cost of the paper's model on a GPU, baseline and HERO, and training speed against transformers and torchtitan.

Writes docs/results/gpu.md: the routers alone, training steps of as many layers as fit with learned and with
forced balanced routing, forward passes of the whole model, and training of a part of it against both,
round-robin. `--device cpu --quick` runs everything without a GPU.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

from machine import gpu
from paper import CONFIG, LAYERS, ON_GPU, layers_that_fit, router_times
from peers.training import QUICK, SETTINGS, competitive_settings
from rounds import (
    PROGRAM,
    ROOT,
    Target,
    best_of,
    hero_json,
    json_lines,
    note,
    own_command,
    parser,
    ratios_per_round,
    round_robin,
    spread,
    table,
    write_page,
)

# `--quick`: the paper's history depth in a tiny model.
SMALL = [
    "--model.hidden_size=64", "--model.num_attention_heads=2", "--model.num_key_value_heads=2",
    "--model.q_lora_rank=32", "--model.kv_lora_rank=32", "--model.n_routed_experts=16",
    "--model.moe_intermediate_size=32", "--model.vocab_size=256", "--train.sequence=128",
]  # fmt: skip
PAPER = {"forward_ms": "forward pass", "step_ms": "step", "peak_memory_mib": "peak memory"}
MAX_OVERHEAD = {"forward_ms": 1.5, "step_ms": 0.64, "peak_memory_mib": 0.44}  # percent, HERO over baseline


def cost_table(args: argparse.Namespace, layers: int, *more: Any) -> dict[str, Any]:
    words = ["--config", CONFIG, *(SMALL if args.quick else []), f"--train.device={args.device}"]
    words += ["--train.micro_batch=1", f"--train.global_batch={args.micro_batches}"]
    words += ["--layers", layers, "--rounds", args.rounds, "--steps", args.steps, *more, "--json"]
    note(f"hero bench cost-table {' '.join(str(word) for word in words)}")
    return hero_json("bench", "cost-table", *words)


def comparison_table(found: dict[str, Any]) -> list[str]:
    """A table with a row per measured quantity: baseline, HERO, HERO vs. baseline."""
    shown = []
    for key, name in [
        *PAPER.items(),
        ("router_step_ms", "routers"),
        ("product_share", "share of GEMM throughput"),
    ]:
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
            f"{PAPER[key]}, HERO over baseline, {what}",
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
    lines: list[str] = []
    targets: list[Target] = []
    for what, more in (("learned routing", []), ("forced balance", ["--router.force_balance=true"])):
        found = cost_table(args, layers, *more)
        lines += [f"## Training, {layers} layers, {what}", "", *comparison_table(found), ""]
        if what == "learned routing":
            targets = overheads(found, f"{layers} layers in training", list(PAPER))
            share = [100 * value for value in found["columns"]["product_share"]["hero"]["rounds"]]
            targets.append(Target(f"share of GEMM throughput, {what}", 40, share, own_command(), unit="%"))
    return lines, targets


def forward(args: argparse.Namespace, layers: int) -> tuple[list[str], list[Target]]:
    found = cost_table(args, layers, "--forward")
    lines = [f"## Forward passes, {layers} layers", "", *comparison_table(found), ""]
    return lines, overheads(found, f"{layers} layers, forward passes only", ["forward_ms"])


def against_peers(args: argparse.Namespace, layers: int) -> tuple[list[str], list[Target]]:
    """Training speed of a baseline, which the other projects support, and of HERO."""
    sequence, steps = (32, 1) if args.quick else (4096, args.steps)
    config = ROOT / "configs/small-qwen3.toml" if args.quick else CONFIG

    def ours(kind: str) -> float:
        words = ["--config", config, f"--router.kind={kind}", f"--train.device={args.device}"]
        words += [f"--model.num_hidden_layers={layers}", f"--train.sequence={sequence}"]
        words += ["--train.micro_batch=1", "--train.global_batch=1", "--optim.warmup_steps=1"]
        costs = json_lines(PROGRAM, "bench", "step", *words, "--steps", steps)[-1]
        return 1e3 * sequence / statistics.median(costs["step_ms"])

    hero_train = {f"hero train, {kind}": (lambda kind=kind: ours(kind)) for kind in ("baseline", "hero")}
    own = ["--device", args.device, "--layers", str(layers), "--batch", "1", "--sequence", str(sequence)]
    theirs, skipped = competitive_settings(config.stem, QUICK if args.quick else SETTINGS, steps, own)
    if not theirs:
        return ["## Comparison with transformers and torchtitan", "", *(f"{line}\n" for line in skipped)], []
    measured = round_robin(hero_train | theirs, args.rounds, "tokens/s")
    best = best_of(measured, "transformers")
    ratios = {name: ratios_per_round(values, measured[best]) for name, values in measured.items()}
    shown = [[name, spread(values, 0), spread(ratios[name])] for name, values in measured.items()]
    lines = [
        "## Comparison with transformers and torchtitan",
        "",
        f"Training, {layers} layers, {sequence:,} tokens per step; ratios per round to {best}.",
        "",
        *table(["", "tokens/s", "ratio"], shown),
        "",
        *(f"{line}\n" for line in skipped),
    ]
    target = Target("training, baseline over transformers", 2, ratios["hero train, baseline"], own_command())
    return lines, [target]


def main() -> None:
    args_parser = parser(__doc__, "gpu.md", rounds=3)
    args_parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    args_parser.add_argument("--steps", type=int, default=8, help="timed steps per process")
    args_parser.add_argument(
        "--micro-batches", type=int, default=2, help="micro-batches per step, 4,096 tokens each"
    )
    args_parser.add_argument("--layers", type=int, default=0, help="layers to train; 0: as many as fit")
    args = args_parser.parse_args()
    if args.device == "cuda" and not gpu():
        raise SystemExit("--device: found cuda, expected cpu without a GPU")
    layers, all_layers = args.layers, LAYERS
    if args.quick:
        args.rounds, args.steps, layers, all_layers = 1, 1, 4, 6
    elif not layers:
        import torch

        words = ["--train.micro_batch=1", f"--train.global_batch={args.micro_batches}"]
        layers = layers_that_fit(words, torch.cuda.get_device_properties(0).total_memory, ON_GPU)
    lines, targets = [], []
    for part in (
        routers(args),
        training(args, layers),
        forward(args, all_layers),
        against_peers(args, max(2, layers // 2)),
    ):
        lines += part[0]
        targets += part[1]
    head = ["what", "target", "measured", "", ""]
    shown = [[t.what, t.limit, t.measured, t.result, f"`{t.command}`"] for t in targets]
    device = gpu() if args.device == "cuda" else "the processor"
    about = [f"`configs/paper-8b.toml` in bf16 on {device}; median (range over rounds).", ""]
    write_page(args, "The paper's model on a GPU", [*about, *table(head, shown), "", *lines], targets)


if __name__ == "__main__":
    main()
