"""Time per token and memory by tokens per step, sequence length, vocabulary, experts, layers and visible history,
baseline and HERO, next to the arithmetic at the measured GEMM throughput and the predicted memory.

Writes docs/results/PROCESSOR/scaling.md and scaling.png next to it. Small widths, so that everything takes minutes;
every point is measured by `hero bench cost-table` (alternating processes) and predicted by `hero cost`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rounds import Target, cpu_page, hero_json, note, own_command, parser, table, write_page
from scaling_figure import NAMES, STYLES, draw

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
    "model.max_position_embeddings": 32768,
    "train.sequence": 256,
    "train.micro_batch": 4,
    "train.global_batch": 4,
    "train.device": "cpu",
    "optim.warmup_steps": 1,
}
SEQUENCE_TOKENS = 32768  # of a step, for every sequence length
FIXED = ("weights", "master weights", "gradients", "optimizer moments")
MORE_ACTIVATIONS = 1.15  # allowed memory of activations, times what must be kept


@dataclass
class Sweep:
    """A series of measurements; `settings(value)` changes the configuration."""

    title: str
    values: Sequence[int]
    quick: Sequence[int]
    settings: Callable[[int], dict[str, Any]]


def batch(sequences: int) -> dict[str, Any]:
    return {"train.micro_batch": sequences, "train.global_batch": sequences}


NARROW = {"model.moe_intermediate_size": 32}
DEEP = NARROW | {"model.num_hidden_layers": 61, "model.num_experts": 64}
SWEEPS = [
    Sweep("tokens per step", (256, 512, 1024, 2048, 4096, 8192), (256, 512), lambda n: batch(n // 256)),
    Sweep("sequence length", (512, 1024, 2048, 4096, 8192, 16384, 32768), (16384, 32768),
          lambda n: {"train.sequence": n} | batch(SEQUENCE_TOKENS // n)),
    Sweep("vocabulary", (2048, 8192, 32768, 131072), (2048, 8192), lambda n: {"model.vocab_size": n}),
    Sweep("experts", (8, 16, 32, 64, 128, 256, 512), (8, 16), lambda n: {"model.num_experts": n}),
    Sweep("layers", (4, 8, 15, 30, 60), (4, 8), lambda n: NARROW | {"model.num_hidden_layers": n}),
    Sweep("visible layers (window)", (4, 8, 15, 30, 60), (4, 8), lambda n: DEEP | {"router.window": n}),
]  # fmt: skip


def measure(settings: dict[str, Any], rounds: int, steps: int) -> dict[str, Any]:
    """Of both models: microseconds per token of a step, of the routers and of the step's operations at the GEMM
    throughput; peak memory of tensors, its prediction, and its ratio to what is allowed."""
    words = [f"--{key}={number}" for key, number in settings.items()]
    cost = hero_json("cost", *words, "--json")["memory of a device"]
    found = hero_json(
        "bench", "cost-table", *words, "--rounds", rounds, "--steps", steps, "--warmup", 1, "--json"
    )
    columns = found["columns"]
    point: dict[str, Any] = {}
    for side in STYLES:
        mib = {name: value[side] / 2**20 for name, value in cost.items()}
        values = {key: columns[key][side]["rounds"] for key in
                  ("step_ms", "router_step_ms", "tensor_peak_mib", "product_share")}  # fmt: skip
        per_token = 1e3 / found["tokens_a_step"]
        point[f"{side} step"] = [ms * per_token for ms in values["step_ms"]]
        point[f"{side} router"] = [ms * per_token for ms in values["router_step_ms"]]
        point[f"{side} step arithmetic"] = [
            share * us for share, us in zip(values["product_share"], point[f"{side} step"], strict=True)
        ]
        point[f"{side} memory"] = values["tensor_peak_mib"]
        point[f"{side} predicted memory"] = [mib["peak"]]
        allowed = sum(mib[name] for name in FIXED)
        allowed += MORE_ACTIVATIONS * (mib["activations"] + mib["routing history"])
        point[f"{side} allowed"] = [peak / allowed for peak in values["tensor_peak_mib"]]
    return point


def rows(line: list[dict[str, Any]]) -> list[list[str]]:
    """A row per value: times and memory of both models."""
    names = {"step": 1, "step arithmetic": 1, "router": 2, "memory": 0, "predicted memory": 0}
    return [
        [f"{point['value']:,}"]
        + [
            " / ".join(f"{median(point[f'{side} {name}']):,.{places}f}" for side in STYLES)
            for name, places in names.items()
        ]
        for point in line
    ]


def page(points: dict[str, list[dict[str, Any]]], image: Path, rounds: int) -> list[str]:
    lines = [
        f"![Time per token and memory by six sizes]({image.name})",
        "",
        "*Top: whole optimizer step, and its operations at the measured GEMM throughput (dotted). Middle: forward and "
        "backward of all routers (logits, softmax, history). Bottom: peak memory of tensors, and the prediction of "
        f"`hero cost` (dotted). Median and range of {rounds} rounds.*",
        "",
        "Fixed parameters: 8 layers of 32 experts (hidden size 128, 4 experts of 64 per token), 2,048 tokens of "
        "vocabulary, 4 x 256 tokens per step (32,768 for the sequence length sweep), bf16, a history of all preceding "
        "layers; layers and visible layers with experts of 32, the latter with 61 layers of 64 experts.",
        "",
        f"Peak memory is at most {max(largest(points, side) for side in STYLES):.2f} times weights, gradients, "
        f"moments and {MORE_ACTIVATIONS} times the activations that must be kept, as `hero cost` counts them.",
        "",
        "Each cell: baseline / HERO. Times in microseconds per token, memory in MiB.",
    ]
    for title, line in points.items():
        head = [title, "step", "its operations at GEMM throughput", "routers", "peak memory", "predicted"]
        lines += ["", *table(head, rows(line))]
    return lines


def largest(points: dict[str, list[dict[str, Any]]], side: str) -> float:
    """The largest ratio of peak memory to what is allowed."""
    return max(median(point[f"{side} allowed"]) for line in points.values() for point in line)


def main() -> None:
    args_parser = parser(__doc__, cpu_page("scaling.md"), rounds=3)
    args_parser.add_argument("--steps", type=int, default=3)
    args = args_parser.parse_args()
    if args.quick:
        args.rounds, args.steps = 1, 1
    points: dict[str, list[dict[str, Any]]] = {}
    for sweep in SWEEPS:
        points[sweep.title] = []
        for value in sweep.quick if args.quick else sweep.values:
            found = measure(MODEL | sweep.settings(value), args.rounds, args.steps)
            points[sweep.title].append({"value": value} | found)
            note(f"{sweep.title} {value}: done")
    image = args.out.with_suffix(".png")
    draw(image, points)
    targets = [
        Target(
            "peak memory over weights, gradients, moments and 1.15 times the kept activations, "
            f"{NAMES[side]}, largest of {sum(map(len, points.values()))} models",
            1.0,
            [largest(points, side)],
            own_command(),
            at_least=False,
        )
        for side in STYLES
    ]
    write_page(args, "Scaling", page(points, image, args.rounds), targets)


if __name__ == "__main__":
    main()
