"""Two processes against one by layout: tokens per second, waiting time, and data sent between stages.

Processes with one thread each on this machine, over Gloo on loopback; same model, batch and data. Waiting is
the time of a rank in receives and collectives. For comparison: the ideal bubble of the schedule (equal pass
times, no communication cost) and the speed that `hero plan` predicts.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ranks import train_ranks
from rounds import (
    ROOT,
    cpu_page,
    hero_json,
    metrics,
    note,
    parser,
    ratios_per_round,
    round_robin,
    spread,
    table,
    write_page,
)
from token_files import write_tokens

MICRO_BATCHES = 8
MODEL = {
    "router.kind": "hero",
    "router.stages": 2,
    "train.sequence": 512,
    "train.micro_batch": 1,
    "train.global_batch": MICRO_BATCHES,
    "train.device": "cpu",
    "checkpoint.every": 0,
}
PIPELINE = {"parallel.pipeline": 2}
TRAFFIC = ("activations_mib", "history_mib", "history_ms")
GLOBAL = PIPELINE | {"router.history": "global"}


@dataclass
class Layout:
    """`ranks` processes with these settings."""

    ranks: int
    settings: dict[str, Any]
    bubble: float | None = None
    last: dict[str, Any] = field(default_factory=dict)  # medians over the steps of the last round


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
    """Median tokens per second, without the first two steps."""
    with tempfile.TemporaryDirectory() as work:
        settings = (
            MODEL | {"train.steps": steps, "optim.warmup_steps": 1, "train.threads": 1} | layout.settings
        )
        run = Path(work) / "run"
        train_ranks(layout.ranks, ROOT / f"configs/{config}.toml", data, run, settings)
        lines = metrics(run)
    layout.last = of_steps(lines)
    return statistics.median(line["tokens_per_second"] for line in lines[2:])


def predicted_seconds(layout: Layout, config: str) -> float:
    """Seconds per step predicted by `hero plan`; the device speed cancels in ratios."""
    settings = MODEL | {key: value for key, value in layout.settings.items() if key != "train.threads"}
    words = ["--config", ROOT / f"configs/{config}.toml", "--own-layout", "--gpus", layout.ranks]
    words += ["--gpus-per-node", 2, "--teraflops", 0.13, "--memory-gib", 1000]
    words += ["--bandwidth-node-gbs", 4, "--bandwidth-network-gbs", 4]
    found = hero_json("plan", *words, "--json", *(f"--{key}={value}" for key, value in settings.items()))
    side = "hero_global" if settings.get("router.history") == "global" else "hero_stage"
    return float(found["layouts"][0][side]["seconds"])


def of_steps(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over steps. A step's metrics contain the busy time of the previous step."""
    if "ranks" not in lines[0]:
        return {}
    ranks = [line["ranks"] for line in lines[2:]]
    before = [line["step_ms"] for line in lines[1:-1]]
    waited = [1 - rank["busy_ms_mean"] / step_ms for rank, step_ms in zip(ranks, before, strict=True)]
    return {"waited": statistics.median(waited)} | {
        key: statistics.median(rank[key] for rank in ranks) for key in TRAFFIC
    }


def main() -> None:
    arguments = parser(__doc__, cpu_page("parallel-speed.md"), rounds=3)
    arguments.add_argument("--config", default="small-qwen3")
    arguments.add_argument("--steps", type=int, default=8)
    args = arguments.parse_args()
    if args.quick:
        args.rounds, args.steps = 1, 4
    with tempfile.TemporaryDirectory() as work:
        data = write_tokens(Path(work), 8192)
        rates = round_robin(
            {
                name: (lambda layout=layout: train(layout, args.config, data, args.steps))
                for name, layout in LAYOUTS.items()
            },
            args.rounds,
            "tokens/s",
        )
    note("done")
    rows = []
    alone = predicted_seconds(LAYOUTS["one process"], args.config)
    for name, layout in LAYOUTS.items():
        ratio = spread(ratios_per_round(rates[name], rates["one process"]))
        last = layout.last
        seen = [f"{last[key]:.2f}" if last else "" for key in TRAFFIC]
        waited = f"{100 * last['waited']:.0f}%" if last else ""
        ideal = f"{100 * layout.bubble:.1f}%" if layout.bubble else ""
        plan = f"{alone / predicted_seconds(layout, args.config):.2f}" if layout.bubble else ""
        rows.append([name, spread(rates[name], 0), ratio, plan, waited, ideal, *seen])
    head = ["layout", "tokens/s, median (range over rounds)", "vs. one process", "predicted by `hero plan`", "waiting", "ideal bubble",
            "activations and gradients sent, MiB", "history, MiB", "history time, ms"]  # fmt: skip
    lines = [
        f"`{args.config}`, {MICRO_BATCHES} micro-batches of 512 tokens per step. Waiting, bytes and times are medians "
        "over the steps of the last round; waiting is the mean of both ranks and includes the collectives at "
        "the end "
        "of a step.",
        "",
        *table(head, rows),
    ]
    write_page(args, "Two processes", lines)


if __name__ == "__main__":
    main()
