"""Time per token by tokens per step, sequence length, experts, layers and visible history, baseline and HERO.

Writes docs/results/scaling.md and docs/images/scaling.png. Small widths, so that everything takes minutes;
every point is measured by `hero bench cost-table` (alternating processes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rounds import ROOT, hero_json, note, parser, table, write_page

MODEL = {
    "model.hidden_size": 128,
    "model.num_hidden_layers": 8,
    "model.num_attention_heads": 4,
    "model.num_key_value_heads": 2,
    "model.head_dim": 32,
    "model.num_experts": 32,
    "model.num_experts_per_tok": 4,
    "model.moe_intermediate_size": 64,
    "model.vocab_size": 2048,
    "model.max_position_embeddings": 16384,
    "train.sequence": 256,
    "train.micro_batch": 4,
    "train.global_batch": 4,
    "train.device": "cpu",
    "optim.warmup_steps": 1,
}
# Color-blind safe colors (Okabe and Ito) and different markers.
STYLES = {"baseline": ("#0072B2", "o"), "hero": ("#D55E00", "s")}
NAMES = {"baseline": "baseline", "hero": "HERO"}


@dataclass
class Sweep:
    """A series of measurements; `settings` returns the configuration of each value."""

    title: str
    values: Sequence[int]
    quick: Sequence[int]

    def settings(self, value: int) -> dict[str, Any]:
        if self.title == "tokens per step":
            return {"train.micro_batch": value // 256, "train.global_batch": value // 256}
        if self.title == "sequence length":  # equal tokens per step
            batch = 4096 // value
            return {"train.sequence": value, "train.micro_batch": batch, "train.global_batch": batch}
        if self.title == "experts":
            return {"model.num_experts": value}
        if self.title == "layers":
            return {"model.num_hidden_layers": value, "model.moe_intermediate_size": 32}
        return {"model.num_hidden_layers": 25, "model.moe_intermediate_size": 32, "router.window": value,
                "model.num_experts": 64}  # fmt: skip


SWEEPS = [
    Sweep("tokens per step", (256, 512, 1024, 2048, 4096, 8192), (256, 512)),
    Sweep("sequence length", (128, 256, 512, 1024, 2048, 4096), (256, 512)),
    Sweep("experts", (8, 16, 32, 64, 128, 256, 512), (8, 16)),
    Sweep("layers", (4, 8, 15, 30, 60), (4, 8)),
    Sweep("visible layers (window)", (1, 2, 4, 8, 16, 24), (1, 2)),
]


def measure(sweep: Sweep, value: int, rounds: int, steps: int) -> dict[str, Any]:
    """Microseconds per token of both models: whole step, routers."""
    settings = MODEL | sweep.settings(value)
    words = [f"--{key}={number}" for key, number in settings.items()]
    words += ["--rounds", rounds, "--steps", steps, "--warmup", 1, "--json"]
    found = hero_json("bench", "cost-table", *words)
    point: dict[str, Any] = {"value": value}
    for side in STYLES:
        for name, key in (("step", "step_ms"), ("router", "router_step_ms")):
            values = found["columns"][key][side]["rounds"]
            point[f"{side} {name}"] = [1e3 * ms / found["tokens_a_step"] for ms in values]
    return point


def draw(path: Path, points: dict[str, list[dict[str, Any]]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(points), figsize=(3.2 * len(points), 5.6), squeeze=False)
    for column, (title, line) in enumerate(points.items()):
        for row, name in enumerate(("step", "router")):
            axis = axes[row][column]
            for side, (color, mark) in STYLES.items():
                values = [point["value"] for point in line]
                middle = [median(point[f"{side} {name}"]) for point in line]
                low = [m - min(point[f"{side} {name}"]) for m, point in zip(middle, line, strict=True)]
                high = [max(point[f"{side} {name}"]) - m for m, point in zip(middle, line, strict=True)]
                dashes = "-" if side == "baseline" else "--"
                axis.errorbar(values, middle, yerr=(low, high), color=color, marker=mark, markersize=5, capsize=2,
                              linestyle=dashes, label=NAMES[side])  # fmt: skip
            axis.set_xscale("log", base=2)
            axis.set_xticks([point["value"] for point in line])
            axis.get_xaxis().set_major_formatter(matplotlib.ticker.ScalarFormatter())
            axis.minorticks_off()
            axis.tick_params(axis="x", labelrotation=45, labelsize=8)
            axis.set_ylim(bottom=0)
            axis.set_xlabel(title)
            axis.grid(alpha=0.3)
        axes[0][column].set_title(title)
    axes[0][0].set_ylabel("whole step, µs per token")
    axes[1][0].set_ylabel("all routers, µs per token")
    axes[0][0].legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main() -> None:
    args_parser = parser(__doc__, "scaling.md", rounds=3)
    args_parser.add_argument("--steps", type=int, default=3)
    args_parser.add_argument("--image", type=Path, default=ROOT / "docs/images/scaling.png")
    args = args_parser.parse_args()
    if args.quick:
        args.rounds, args.steps = 1, 1
    points: dict[str, list[dict[str, Any]]] = {}
    for sweep in SWEEPS:
        points[sweep.title] = []
        for value in sweep.quick if args.quick else sweep.values:
            points[sweep.title].append(measure(sweep, value, args.rounds, args.steps))
            note(f"{sweep.title} {value}: done")
    draw(args.image, points)
    lines = [
        f"![Time per token by five sizes]({Path('..') / args.image.relative_to(ROOT / 'docs')})"
        if args.image.is_relative_to(ROOT / "docs")
        else f"![Time per token by five sizes]({args.image})",
        "",
        "*Top: whole optimizer step; bottom: forward and backward of all routers (logits, softmax, history); "
        f"microseconds per token, median and range of {args.rounds} rounds.*",
        "",
        "Fixed parameters: 8 layers of 32 experts (hidden size 128, 4 experts of 64 per token), 4 x 256 tokens per "
        "step (4,096 for the sequence length sweep), bf16, a history of all preceding layers; layers and "
        "visible "
        "history with experts of 32, the latter with 25 layers of 64 experts. 8 experts are not a multiple "
        "of 16: that "
        "router uses the reference implementation.",
    ]
    for title, line in points.items():
        rows = [
            [f"{point['value']:,}"]
            + [f"{median(point[f'{side} {name}']):.2f}" for name in ("step", "router") for side in STYLES]
            for point in line
        ]
        head = [title, "step, baseline", "step, HERO", "routers, baseline", "routers, HERO"]
        lines += ["", *table(head, rows)]
    write_page(args, "Scaling", lines)


if __name__ == "__main__":
    main()
