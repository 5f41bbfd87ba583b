"""Speed of a single MoE layer and of the paper's routers: build/bench_moe_layer and build/bench_router_step.

Writes docs/results/PROCESSOR/layer-speed.md.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from paper import router_times
from rounds import (
    ROOT,
    Target,
    cpu_page,
    json_lines,
    own_command,
    parser,
    ratios_per_round,
    spread,
    table,
    write_page,
)


def layer_rows(shapes: list[dict[str, Any]]) -> list[list[str]]:
    def gigaflops(rates: list[float]) -> str:
        return spread([rate / 1e9 for rate in rates], 0)

    return [
        [
            f"{s['tokens']:,}",
            f"{s['hidden_size']:,} x {s['moe_intermediate_size']}",
            str(s["experts"]),
            gigaflops(s["balanced"]["rate"]),
            spread([100 * share for share in s["balanced"]["share"]], 0, "%"),
            gigaflops(s["skewed"]["rate"]),
            spread(s["skewed_over_balanced"]),
            gigaflops(s["gemm_rate"]),
        ]
        for s in shapes
    ]


def router_operations(layers: int, tokens: int, hidden: int = 1024, experts: int = 128) -> int:
    """FLOPs of the forward and backward passes of all routers in two stages: per token, 6 per hidden state
    weight and 4 per history weight, because the history has no gradient."""
    stage = layers // 2
    history = 2 * experts * experts * (stage * (stage - 1) // 2)
    return tokens * (6 * layers * hidden * experts + 4 * history)


def main() -> None:
    args = parser(__doc__, cpu_page("layer-speed.md")).parse_args()
    few = ["--calls", 1] if args.quick else []
    rounds = ["--rounds", 1 if args.quick else args.rounds]
    quick = ["--quick"] if args.quick else []
    shapes = json_lines(ROOT / "build/bench_moe_layer", *rounds, *few, *quick, "--device", "cpu")
    small = ["--layers", 4, "--tokens", 512] if args.quick else []
    [routers] = json_lines(ROOT / "build/bench_router_step", *rounds, *few, *small, "--device", "cpu")
    seconds = routers["seconds"]
    joined = min(("concatenating_bf16", "concatenating_fp32"), key=lambda name: median(seconds[name]))
    over = ratios_per_round(seconds["hero"], seconds["baseline"])
    faster = ratios_per_round(seconds[joined], seconds["hero"])
    rate = median(rate for s in shapes for rate in s["gemm_rate"])
    at_full_rate = router_operations(routers["layers"], routers["tokens"]) / rate
    # The slowest shape must meet the target.
    slowest = min(shapes, key=lambda s: median(s["balanced"]["share"]))
    skewed = min(shapes, key=lambda s: median(s["skewed_over_balanced"]))

    def shape(s: dict[str, Any]) -> str:
        return f"{s['tokens']:,} tokens, {s['hidden_size']:,} x {s['moe_intermediate_size']}, {s['experts']} experts"

    command = own_command()
    targets = [
        Target(
            f"MoE layer, share of GEMM throughput, slowest shape ({shape(slowest)})",
            60,
            [100 * share for share in slowest["balanced"]["share"]],
            command,
            unit="%",
            places=0,
        ),
        Target(
            f"MoE layer, throughput skewed vs. balanced, slowest shape ({shape(skewed)})",
            0.8,
            skewed["skewed_over_balanced"],
            command,
        ),
        Target("router step, HERO over baseline", 1.75, over, command, at_least=False),
        Target(
            f"router step, {joined.replace('_', ' in ')} over HERO",
            3.0,
            faster,
            command,
            ceiling=[value / at_full_rate for value in seconds[joined]],
        ),
    ]
    write_page(
        args,
        "MoE layer and routers",
        [
            "Router to combine, forward and backward, bf16, 4 experts per token; GFLOP/s, and the share of the "
            "throughput of a 2,048 x 2,048 GEMM measured alongside (the better of `at::mm` and our GEMM). "
            "Skewed: one "
            "expert receives half of the tokens. Median (range over rounds).",
            "",
            *table(
                "tokens|D x F|E|balanced|share|skewed|skewed / balanced|GEMM".split("|"),
                layer_rows(shapes),
            ),
            "",
            *router_times(routers),
            "",
            f"HERO over baseline: {spread(over)}; the faster concatenating version vs. HERO: "
            f"{spread(faster)}.",
        ],
        targets,
    )


if __name__ == "__main__":
    main()
