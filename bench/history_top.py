"""Loss from sending only the largest entries of the history across a pipeline boundary.

Two pipeline ranks train one model with global history on the given text, sending either all entries or the k
largest plus the remaining mass; for comparison, also a model with stage-local history. Same seed and batches.
The page shows the loss over the last tenth of the steps, the loss on held-out text (one process, full
history), and the bytes sent. It also shows the effect of truncation on the model trained with all entries:
the difference of its loss on held-out batches, with the standard error over batches.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ranks import train_ranks
from rounds import PROGRAM, ROOT, metrics, note, parser, table, write_page

MODEL = {
    "router.kind": "hero",
    "router.stages": 2,
    "router.history": "global",
    "parallel.pipeline": 2,
    "train.sequence": 256,
    "train.micro_batch": 2,
    "train.global_batch": 8,
    "train.threads": 1,
    "checkpoint.every": 0,
}
# A learning rate that changes no weight: training only computes the loss.
FROZEN = {"optim.lr": 1e-12, "optim.min_lr": 0.0, "optim.warmup_steps": 0}
FULL = "all entries"


def cuts(tops: Sequence[int]) -> dict[str, dict[str, Any]]:
    return {FULL: {}} | {f"the {top} largest": {"parallel.history_top": top} for top in tops}


def against(values: Sequence[float], full: Sequence[float]) -> str:
    """Mean difference with its standard error."""
    difference = [value - other for value, other in zip(values, full, strict=True)]
    error = statistics.stdev(difference) / math.sqrt(len(difference))
    return f"{statistics.mean(difference):+.4f} ± {error:.4f}"


def main() -> None:
    arguments = parser(__doc__, "history-top.md", rounds=1)
    arguments.add_argument("--data", required=True, help="PREFIX of token files")
    arguments.add_argument("--held-out", required=True, help="PREFIX of held-out token files")
    arguments.add_argument("--config", default="demo")
    arguments.add_argument("--steps", type=int, default=300)
    arguments.add_argument("--tops", type=int, nargs="+", default=[8, 4, 2, 1])
    args = arguments.parse_args()
    steps = 20 if args.quick else args.steps
    config = ROOT / f"configs/{args.config}.toml"
    schedule = {"train.steps": steps, "optim.warmup_steps": max(1, steps // 20)}
    forms = cuts(args.tops)
    rows = []
    with TemporaryDirectory() as folder:
        trained = Path(folder) / "trained"
        losses, afterwards = {}, {}
        for name, settings in (forms | {"no history: two stages": {"router.history": "stage"}}).items():
            run = trained if name == FULL else Path(folder) / name.replace(" ", "-").replace(":", "")
            train_ranks(2, config, Path(args.data), run, MODEL | schedule | settings)
            subprocess.run(
                [PROGRAM, "eval", run, "--data", args.held_out], check=True, stdout=subprocess.DEVNULL
            )
            held_out = json.loads((run / "eval.json").read_text())["datasets"][0]["loss"]
            lines = metrics(run)
            losses[name] = statistics.mean(line["lm_loss"] for line in lines[-(steps // 10) :])
            sent = lines[-1]["ranks"]
            if name in forms:
                frozen = Path(f"{run}-frozen")
                held = MODEL | FROZEN | {"train.steps": min(steps, 40)} | settings
                train_ranks(2, config, Path(args.held_out), frozen, held, "--init-from", trained)
                afterwards[name] = [line["lm_loss"] for line in metrics(frozen)]
            cut = against(afterwards[name], afterwards[FULL]) if name in forms and name != FULL else ""
            note(f"{name}: {losses[name]:.4f}, held out {held_out:.4f}, truncated after training {cut}")
            rows.append([name, f"{losses[name]:.4f}", f"{losses[name] - losses[FULL]:+.4f}", f"{held_out:.4f}", cut,
                         f"{sent['history_mib']:.3f}", f"{sent['activations_mib']:.3f}"])  # fmt: skip
    head = ["sent", "loss, last tenth", "vs. all entries", "held-out loss",
            "trained with all, then truncated", "history per step, MiB", "activations per step, MiB"]  # fmt: skip
    write_page(args, "Truncated history at the pipeline boundary", [f"`{args.config}`, {steps} steps of 2,048 tokens.", "",
                                                       *table(head, rows)])  # fmt: skip


if __name__ == "__main__":
    main()
