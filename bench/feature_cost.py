"""Step time with a training feature relative to that without it, `small-qwen3` and `small-deepseek`, from paired
steps of two processes.

Writes docs/results/PROCESSOR/feature-cost.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paused import step_time_ratio, train_command
from rounds import cpu_page, parser, round_robin, spread, table, write_page
from token_files import write_documents

PAIRS = 48  # pairs of steps per round
DATA = "--data={folder}/documents"


@dataclass
class Feature:
    """What is compared: options with the feature and its data, and the others that both runs have."""

    name: str
    options: list[str]
    both: list[str]
    config: str = "small-qwen3"
    data: str = DATA


LONG = ["--train.sequence=2048", "--train.micro_batch=1", "--train.global_batch=1",
        "--model.max_position_embeddings=2048"]  # fmt: skip
DOCUMENTS = ["--train.document_mask=true", "--train.document_positions=true"]
FEATURES = [
    Feature("none: equal commands", [], []),
    Feature("document mask and positions, 4 x 512 tokens", DOCUMENTS, []),
    Feature("document mask and positions, 1 x 2,048 tokens", DOCUMENTS, LONG),
    Feature("`train.pack = \"best_fit\"`", ["--train.pack=best_fit"], []),
    Feature("`train.loss_mask`, half of the tokens", ["--train.loss_mask=true"], []),
    Feature("`train.norms_every`: a step with norms", ["--train.norms_every=1"], []),
    Feature("`data.phase`, two phases", [], [], data="--config={folder}/phases.toml"),
    Feature("`train.log_every = 1`, not 10", ["--train.log_every=1"], []),
    Feature("`optim.schedule = \"wsd\"`", ["--optim.schedule=wsd"], []),
    Feature("`optim.router_lr`, `optim.history_lr`", ["--optim.router_lr=2", "--optim.history_lr=0.5"], []),
    Feature("`train.spike_skip`, `train.skip_nonfinite`", ["--train.spike_skip=6", "--train.skip_nonfinite=3"], []),
    Feature("`router.z_loss`", ["--router.z_loss=1e-3"], []),
    Feature("`router.balance = \"global\"`", ["--router.balance=global"], []),
    Feature("`olmoe` instead of `qwen3_moe`", ["--model.model_type=olmoe"], []),
    Feature("`mixtral` instead of `qwen3_moe`", ["--model.model_type=mixtral"], []),
    Feature("`router.bias_update_rate`", ["--router.bias_update_rate=1e-3"], [], "small-deepseek"),
    Feature("one module of multi-token prediction", ["--model.num_nextn_predict_layers=1"], [], "small-deepseek"),
]  # fmt: skip


def ratio(feature: Feature, folder: Path, pairs: int) -> float:
    runs = folder / "with", folder / "without"
    commands = []
    for run, data, options in zip(runs, (feature.data, DATA), (feature.options, []), strict=True):
        words = [*train_command(run, feature.config, "hero"), data.format(folder=folder)]
        commands.append([*words, *feature.both, *options])
    return step_time_ratio(commands[0], commands[1], runs, pairs)


def main() -> None:
    args = parser(__doc__, cpu_page("feature-cost.md"), rounds=3).parse_args()
    pairs = 2 if args.quick else PAIRS
    features = FEATURES[1:3] if args.quick else FEATURES
    if args.quick:
        args.rounds = 1
    with tempfile.TemporaryDirectory() as folder:
        data = write_documents(Path(folder), 8192)
        phases = ["[[data.phase]]\nuntil_step = 4\n", "[[data.phase]]\n"]
        Path(folder, "phases.toml").write_text("".join(f'{phase}blend = ["1:{data}"]\n' for phase in phases))
        candidates: dict[str, Callable[[], float]] = {
            feature.name: lambda feature=feature: ratio(feature, Path(folder), pairs) for feature in features
        }
        ratios = round_robin(candidates, args.rounds, "times", 3)
    rows = [[feature.name, feature.config, spread(ratios[feature.name], 3)] for feature in features]
    lines = [
        *table(["feature", "model", "step time, times that without"], rows),
        "",
        f"HERO, bf16, 2,048 tokens per step, documents of 32 to 399 random tokens. Median and range of "
        f"{args.rounds} rounds, each from {PAIRS} pairs of consecutive steps of two processes, one of which is "
        "always suspended. Differences below those of equal commands are not measurable.",
    ]
    write_page(args, "Cost of training features", lines, [])


if __name__ == "__main__":
    main()
