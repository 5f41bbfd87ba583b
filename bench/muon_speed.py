"""Step time with optim.kind = muon relative to AdamW, by sequences per step.

Writes docs/results/muon-speed.md. Each round runs both optimizers in processes of their own, in alternating order.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from rounds import (
    PROGRAM,
    Target,
    json_lines,
    parser,
    ratios_per_round,
    round_robin,
    spread,
    table,
    write_page,
)

CONFIG = "configs/small-qwen3.toml"
BATCHES = (4, 16, 64)
BOUND = 1.10


def step_ms(kind: str, batch: int, steps: int) -> Callable[[], float]:
    """Measures the median step time of a new process."""

    def run() -> float:
        words = ["bench", "step", "--config", CONFIG, f"--optim.kind={kind}"]
        words += [f"--train.global_batch={batch}", "--steps", str(steps), "--warmup", "1"]
        return median(json_lines(PROGRAM, *words)[-1]["step_ms"])

    return run


def main() -> None:
    args_parser = parser(__doc__, "muon-speed.md")
    args_parser.add_argument("--steps", type=int, default=6, help="timed steps with the smallest batch")
    args = args_parser.parse_args()
    if args.quick:
        args.rounds, args.steps = 1, 1
    rows, targets = [], []
    for batch in BATCHES[:1] if args.quick else BATCHES:
        steps = max(1, args.steps * BATCHES[0] // batch)
        kinds = {f"{kind}, {batch} sequences": step_ms(kind, batch, steps) for kind in ("adamw", "muon")}
        adamw, muon = round_robin(kinds, args.rounds, "ms").values()
        ratios = ratios_per_round(muon, adamw)
        rows.append([f"{batch}", f"{batch * 512:,}", spread(adamw, 0), spread(muon, 0), spread(ratios)])
        what = f"Muon's step time over AdamW's, `small-qwen3`, {batch} x 512 tokens"
        command = ".venv/bin/python bench/muon_speed.py"
        targets.append(Target(what, BOUND, ratios, command, at_least=False))
    head = ["sequences per step", "tokens per step", "AdamW, ms", "Muon, ms", "Muon / AdamW"]
    lines = [
        *table(head, rows),
        "",
        f"Median and range of {args.rounds} rounds. Newton-Schulz takes the same time for any number of tokens: at "
        "`small-qwen3`, five iterations on 768 expert matrices and 32 attention matrices are 142 GFLOP per step (97 "
        "without the upper halves of symmetric products, which the kernel does not compute). Forward and backward "
        "pass are about 0.05 GFLOP per token.",
    ]
    write_page(args, "Speed of Muon", lines, targets)


if __name__ == "__main__":
    main()
