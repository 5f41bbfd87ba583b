"""What it costs to send only the largest entries of the history across a pipeline boundary.

Two pipeline ranks train one model of global history on the text given, with all entries crossing the boundary and
with the k largest and the rest as one mass; and the model of two stages that keep their histories, for comparison.
One seed, the same batches. The page gives the loss over the last tenth of the steps against the full history's, its
standard error over those steps' differences, the loss on held-out text (by one process, which sees all of the
history), and the bytes.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ranks import train_together
from rounds import PROGRAM, ROOT, note, parser, table, write_page

MODEL = {
    "router.kind": "hero",
    "router.stages": 2,
    "router.history": "global",
    "parallel.pipeline": 2,
    "train.sequence": 256,
    "train.micro_batch": 4,
    "train.global_batch": 8,
    "train.threads": 1,
    "checkpoint.every": 0,
}
FULL = "all entries"


def variants(tops: Sequence[int]) -> dict[str, dict[str, Any]]:
    cut = {f"the {top} largest": {"parallel.history_top": top} for top in tops}
    return {FULL: {}, **cut, "no history crosses: two stages": {"router.history": "stage"}}


def main() -> None:
    arguments = parser(__doc__, "history-top.md", rounds=1)
    arguments.add_argument("--data", required=True, help="PREFIX of token files")
    arguments.add_argument("--config", default="demo")
    arguments.add_argument("--steps", type=int, default=300)
    arguments.add_argument("--tops", type=int, nargs="+", default=[8, 4, 2, 1])
    args = arguments.parse_args()
    steps = 10 if args.quick else args.steps
    losses, held_out, sent = {}, {}, {}
    with tempfile.TemporaryDirectory() as work:
        for name, settings in variants(args.tops).items():
            run = Path(work) / name.replace(" ", "-").replace(":", "")
            more = {"train.steps": steps, "optim.warmup_steps": steps // 10}
            train_together(
                2, ROOT / f"configs/{args.config}.toml", Path(args.data), run, MODEL | more | settings
            )
            lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            losses[name] = [line["lm_loss"] for line in lines[-(steps // 10) :]]
            sent[name] = lines[-1]["ranks"]
            subprocess.run([PROGRAM, "eval", run, "--data", args.data], check=True, stdout=subprocess.DEVNULL)
            held_out[name] = json.loads((run / "eval.json").read_text())["datasets"][0]["loss"]
            note(f"{name}: {statistics.mean(losses[name]):.4f}, held out {held_out[name]:.4f}")
    rows = []
    for name, values in losses.items():
        difference = [value - full for value, full in zip(values, losses[FULL], strict=True)]
        error = statistics.stdev(difference) / math.sqrt(len(difference)) if any(difference) else 0.0
        against = "" if name == FULL else f"{statistics.mean(difference):+.4f} ± {error:.4f}"
        rows.append([name, f"{statistics.mean(values):.4f}", against, f"{held_out[name]:.4f}",
                     f"{sent[name]['history_mib']:.3f}", f"{sent[name]['activations_mib']:.3f}"])  # fmt: skip
    head = ["crosses the boundary", "loss, last tenth", "against all entries", "held-out loss",
            "history a step, MiB", "activations a step, MiB"]  # fmt: skip
    lines = [f"`{args.config}`, {steps} steps of 2,048 tokens.", "", *table(head, rows)]
    write_page(args, "A history cut at the boundary", lines)


if __name__ == "__main__":
    main()
