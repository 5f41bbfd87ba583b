"""Two processes against one, layout by layout: tokens per second, how long ranks wait, what crosses the stages.

Processes of one thread each on this machine, over Gloo on loopback; the same model, batch and data. Waiting is
what a rank spends in receives and collectives; beside it stands the bubble that its schedule has where all passes
take equal times and messages none.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ranks import train_together
from rounds import ROOT, in_turn, note, parser, spread, table, within_rounds, write_page
from train_speed import write_tokens

MICRO_BATCHES = 8
MODEL = {
    "router.kind": "hero",
    "router.stages": 2,
    "train.sequence": 512,
    "train.micro_batch": 1,
    "train.global_batch": MICRO_BATCHES,
    "checkpoint.every": 0,
}
PIPELINE = {"parallel.pipeline": 2}
GLOBAL = PIPELINE | {"router.history": "global"}


@dataclass
class Layout:
    """`ranks` processes with these settings."""

    ranks: int
    settings: dict[str, Any]
    bubble: float | None = None
    last: dict[str, Any] = field(default_factory=dict)  # of the last round: medians over its steps


LAYOUTS = {
    "one process": Layout(1, {"train.threads": 1}),
    "one process, two threads": Layout(1, {"train.threads": 2}),
    "data 2": Layout(2, {"parallel.data": 2}),
    "experts over 2": Layout(2, {"parallel.expert": 2}),
    "pipeline 2, 1F1B": Layout(2, PIPELINE, 1 / (MICRO_BATCHES + 1)),
    "pipeline 2, interleaved, 2 chunks": Layout(
        2, PIPELINE | {"parallel.schedule": "interleaved", "parallel.chunks": 2}, 1 / (2 * MICRO_BATCHES + 1)
    ),
    "pipeline 2, zero bubble": Layout(
        2, PIPELINE | {"parallel.schedule": "zero_bubble"}, 1 / (3 * MICRO_BATCHES + 1)
    ),
    "pipeline 2, 1F1B, global history": Layout(2, GLOBAL, 1 / (MICRO_BATCHES + 1)),
    "pipeline 2, 1F1B, global history, top 8": Layout(
        2, GLOBAL | {"parallel.history_top": 8}, 1 / (MICRO_BATCHES + 1)
    ),
}


def train(layout: Layout, config: str, data: Path, steps: int) -> float:
    """Tokens per second: the median of all steps but the first two."""
    with tempfile.TemporaryDirectory() as work:
        settings = MODEL | {"train.steps": steps, "optim.warmup_steps": 1, "train.threads": 1} | layout.settings
        run = Path(work) / "run"
        train_together(layout.ranks, ROOT / f"configs/{config}.toml", data, run, settings)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    layout.last = of_steps(lines)
    return statistics.median(line["tokens_per_second"] for line in lines[2:])


def of_steps(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A step's line says how long its forerunner kept the ranks busy."""
    if "ranks" not in lines[0]:
        return {}
    waited = [
        1 - line["ranks"]["busy_ms_mean"] / before["step_ms"] for before, line in zip(lines[1:], lines[2:], strict=False)
    ]
    ranks = [line["ranks"] for line in lines[2:]]
    medians = {key: statistics.median(r[key] for r in ranks) for key in ("activations_mib", "history_mib", "history_ms")}
    return {"waited": statistics.median(waited), **medians}


def main() -> None:
    arguments = parser(__doc__, "parallel-speed.md", rounds=3)
    arguments.add_argument("--config", default="small-qwen3")
    arguments.add_argument("--steps", type=int, default=8)
    args = arguments.parse_args()
    if args.quick:
        args.rounds, args.steps = 1, 4
    with tempfile.TemporaryDirectory() as work:
        data = write_tokens(Path(work), 8192)
        rates = in_turn(
            {
                name: (lambda layout=layout: train(layout, args.config, data, args.steps))
                for name, layout in LAYOUTS.items()
            },
            args.rounds,
            "tokens/s",
        )
    note("done")
    rows = []
    for name, layout in LAYOUTS.items():
        ratio = spread(within_rounds(rates[name], rates["one process"]))
        last = layout.last
        seen = [f"{last[key]:.2f}" if last else "" for key in ("activations_mib", "history_mib", "history_ms")]
        waited = f"{100 * last['waited']:.0f}%" if last else ""
        ideal = f"{100 * layout.bubble:.1f}%" if layout.bubble else ""
        rows.append([name, spread(rates[name], 0), ratio, waited, ideal, *seen])
    head = ["layout", "tokens/s, median (range over rounds)", "one process = 1", "waiting", "ideal bubble",
            "activations and gradients sent, MiB", "history, MiB", "time of the history, ms"]  # fmt: skip
    lines = [
        f"`{args.config}`, {MICRO_BATCHES} micro-batches of 512 tokens a step. Waiting, bytes and times are medians over "
        "the last round's steps; waiting is the mean of both ranks, and of a step: also for the collectives at its end.",
        "",
        *table(head, rows),
    ]
    write_page(args, "Two processes", lines)


if __name__ == "__main__":
    main()
