"""What it costs to send only the largest entries of the history across a pipeline boundary.

Two pipeline ranks train one model of global history on the text given, with all entries crossing the boundary and
with the k largest and the rest as one mass; and the model of two stages that keep their histories, for comparison.
One seed, the same batches. The page gives the loss over the last tenth of the steps and the loss on held-out text (by
one process, which sees all of the history), and the bytes. Beside them stands what cutting does to the model that was
trained with all entries: its loss on held-out batches, all entries against the k largest, with the standard error of
the differences over the batches.
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

from ranks import train_together
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
# A rate at which no weight moves: what remains of training is its loss.
STILL = {"optim.lr": 1e-12, "optim.min_lr": 0.0, "optim.warmup_steps": 0}
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
    arguments.add_argument("--held-out", required=True, help="PREFIX of token files that nobody trains on")
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
            train_together(2, config, Path(args.data), run, MODEL | schedule | settings)
            subprocess.run(
                [PROGRAM, "eval", run, "--data", args.held_out], check=True, stdout=subprocess.DEVNULL
            )
            held_out = json.loads((run / "eval.json").read_text())["datasets"][0]["loss"]
            lines = metrics(run)
            losses[name] = statistics.mean(line["lm_loss"] for line in lines[-(steps // 10) :])
            sent = lines[-1]["ranks"]
            if name in forms:
                still = Path(f"{run}-still")
                held = MODEL | STILL | {"train.steps": min(steps, 40)} | settings
                train_together(2, config, Path(args.held_out), still, held, "--init-from", trained)
                afterwards[name] = [line["lm_loss"] for line in metrics(still)]
            cut = against(afterwards[name], afterwards[FULL]) if name in forms and name != FULL else ""
            note(f"{name}: {losses[name]:.4f}, held out {held_out:.4f}, cut after training {cut}")
            rows.append([name, f"{losses[name]:.4f}", f"{losses[name] - losses[FULL]:+.4f}", f"{held_out:.4f}", cut,
                         f"{sent['history_mib']:.3f}", f"{sent['activations_mib']:.3f}"])  # fmt: skip
    head = ["crosses the boundary", "loss, last tenth", "against all entries", "held-out loss",
            "trained with all, then cut", "history a step, MiB", "activations a step, MiB"]  # fmt: skip
    write_page(args, "A history cut at the boundary", [f"`{args.config}`, {steps} steps of 2,048 tokens.", "",
                                                       *table(head, rows)])  # fmt: skip


if __name__ == "__main__":
    main()
