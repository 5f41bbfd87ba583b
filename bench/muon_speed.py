"""CPU time of a step with optim.kind = muon relative to AdamW, on one thread, by sequences per step.

Writes docs/results/PROCESSOR/muon-speed.md. Each round runs both optimizers in processes of their own, in
alternating order. CPU time, unlike wall time, depends little on other programs on the machine.
"""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable

from rounds import PROGRAM, Target, cpu_page, parser, ratios_per_round, round_robin, spread, table, write_page

CONFIG = "configs/small-qwen3.toml"
BATCHES = (4, 16, 32)
BOUND = 1.10
MORE_STEPS = 3  # of 5 steps compared with 2: 3 timed and 2 profiled, 1 and 1


def cpu_seconds(kind: str, batch: int, steps: int) -> float:
    """CPU time of a process that makes `steps` timed steps, and profiled ones."""
    words = ["bench", "step", "--config", CONFIG, f"--optim.kind={kind}", "--train.threads=1"]
    words += [f"--train.global_batch={batch}", "--steps", str(steps), "--warmup", "0"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([PROGRAM, *words], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def step_ms(kind: str, batch: int) -> Callable[[], float]:
    """CPU time of a step, from the difference of two processes, without their start."""
    return lambda: 1e3 * (cpu_seconds(kind, batch, 3) - cpu_seconds(kind, batch, 1)) / MORE_STEPS


def main() -> None:
    args = parser(__doc__, cpu_page("muon-speed.md")).parse_args()
    if args.quick:
        args.rounds = 1
    rows, targets = [], []
    for batch in BATCHES[:1] if args.quick else BATCHES:
        kinds = {f"{kind}, {batch} sequences": step_ms(kind, batch) for kind in ("adamw", "muon")}
        adamw, muon = round_robin(kinds, args.rounds, "ms").values()
        ratios = ratios_per_round(muon, adamw)
        rows.append([f"{batch}", f"{batch * 512:,}", spread(adamw, 0), spread(muon, 0), spread(ratios)])
        what = f"Muon's step over AdamW's, `small-qwen3`, {batch} x 512 tokens, CPU time of one thread"
        targets.append(Target(what, BOUND, ratios, ".venv/bin/python bench/muon_speed.py", at_least=False))
    head = ["sequences per step", "tokens per step", "AdamW, ms", "Muon, ms", "Muon / AdamW"]
    lines = [
        *table(head, rows),
        "",
        f"`small-qwen3`, bf16, CPU time of one thread; median and range of {args.rounds} rounds.",
        "",
        "Newton-Schulz takes the same time for any number of tokens. Five iterations on the 768 expert matrices and "
        "32 attention matrices of `small-qwen3` are 142 GFLOP per step, 98 without the upper halves of symmetric "
        "products, which the kernel does not compute. Forward and backward pass are about 0.05 GFLOP per token: with "
        "the configuration's own batch of 4 x 512 tokens, 93 GFLOP, Muon cannot be cheap; its share falls in "
        "proportion to the batch, and with the number of tokens per expert.",
    ]
    write_page(args, "Speed of Muon", lines, targets)


if __name__ == "__main__":
    main()
