"""Training speed on a GPU against transformers and torchtitan, at the layer shapes of the paper's model.

Writes docs/results/gpu-peers.md. A micro-batch is 4 sequences of 4,096 tokens; the others have no router like HERO's,
so they train the baseline. `--device cpu --quick` runs everything without a GPU.
"""

from __future__ import annotations

import statistics

from paper import CONFIG
from peers.training import QUICK, Setting, competitive_settings
from rounds import (
    PROGRAM,
    ROOT,
    Target,
    best_of,
    json_lines,
    own_command,
    parse_on_gpu,
    parser,
    ratios_per_round,
    round_robin,
    spread,
    table,
    target_table,
    write_page,
)

LAYERS, BATCH = 6, 4
# fp32 products, loops over experts and torchtitan without torch.compile are slower on a GPU.
SETTINGS = [
    Setting("transformers", "bf16", "grouped_mm"),
    Setting("transformers", "mixed", "grouped_mm"),
    Setting("transformers", "bf16", "grouped_mm", compiled=True),
    Setting("torchtitan", "bf16", "grouped_mm", compiled=True),
]
# Beginnings of names of settings, with what the fastest of them has to be exceeded by.
BOUNDS = {"transformers": 2.0, "transformers, mixed": 2.0, "torchtitan": 1.0}


def main() -> None:
    args_parser = parser(__doc__, "gpu-peers.md", rounds=3)
    args_parser.add_argument("--steps", type=int, default=8, help="timed steps per process")
    args_parser.add_argument("--micro-batches", type=int, default=8, help="micro-batches per step")
    args_parser.add_argument("--layers", type=int, default=LAYERS)
    args, device = parse_on_gpu(args_parser)
    config, settings, batch, sequence = CONFIG, SETTINGS, BATCH, 4096
    if args.quick:
        config, settings, batch, sequence = ROOT / "configs/small-qwen3.toml", QUICK, 1, 32
        args.rounds, args.steps, args.micro_batches, args.layers = 1, 1, 2, 2
    sequences = batch * args.micro_batches

    def ours(kind: str) -> float:
        words = [
            "--config",
            config,
            f"--router.kind={kind}",
            f"--train.device={args.device}",
            "--router.stages=1",
        ]
        words += [f"--model.num_hidden_layers={args.layers}", f"--train.sequence={sequence}"]
        words += [
            f"--train.micro_batch={batch}",
            f"--train.global_batch={sequences}",
            "--optim.warmup_steps=1",
        ]
        costs = json_lines(PROGRAM, "bench", "step", *words, "--steps", args.steps)[-1]
        return 1e3 * sequences * sequence / statistics.median(costs["step_ms"])

    hero_train = {f"hero train, {kind}": (lambda kind=kind: ours(kind)) for kind in ("baseline", "hero")}
    own = [
        "--device",
        args.device,
        "--layers",
        str(args.layers),
        "--batch",
        str(batch),
        "--micro-batches",
        str(args.micro_batches),
        "--sequence",
        str(sequence),
    ]
    theirs, skipped = competitive_settings(config.stem, settings, args.steps, own)
    lines = [f"{line}\n" for line in skipped]
    targets = []
    if theirs:
        measured = round_robin(hero_train | theirs, args.rounds, "tokens/s")
        for project, bound in BOUNDS.items():
            if not any(name.startswith(project) for name in measured):
                continue
            best = measured[best_of(measured, project)]
            for kind in ("baseline", "hero"):
                ratio = ratios_per_round(measured[f"hero train, {kind}"], best)
                targets.append(Target(f"training, {kind} over {project}", bound, ratio, own_command()))
        shown = [[name, spread(values, 0)] for name, values in measured.items()]
        lines = [*target_table(targets), "", *table(["", "tokens/s"], shown), "", *lines]
    about = [
        f"`configs/{config.name}` with {args.layers} layers in bf16 on {device}, {args.micro_batches} micro-batches "
        f"of {batch} x {sequence:,} tokens per step, eager; median (range over rounds). Weights, gradients and moments "
        "are fp32, with a bf16 copy of the weights, in ours and in settings with mixed; bf16 in the others.",
        "",
    ]
    write_page(args, "Training on a GPU against transformers and torchtitan", [*about, *lines], targets)


if __name__ == "__main__":
    main()
