"""How balanced and how good short runs are, by load-balancing options: held-out loss, busiest expert, experts
without tokens. Both backbones, three learning rates.

Writes docs/results/balance.md. Trains a HERO model of the size of `configs/demo.toml` for every setting on the token
files of `--data`, in folders below `--runs`; finished runs are reused, interrupted ones resumed. Not a measurement of
time: other work on the machine does not change the results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rounds import PROGRAM, ROOT, metrics, note, parser, table, write_page

LEARNING_RATES = (1e-3, 2e-3, 5e-4)
BATCHES = 16  # of held-out text
BACKBONES: dict[str, list[str]] = {
    "qwen3_moe": [],
    "deepseek_v3": [
        "--model.model_type=deepseek_v3",
        "--model.q_lora_rank=128",
        "--model.n_shared_experts=1",
        "--model.scoring_func=sigmoid",
    ],
}


@dataclass(frozen=True)
class Setting:
    balance_loss: float
    z_loss: float = 0.0
    bias_update_rate: float = 0.0

    def flags(self) -> list[str]:
        values = {
            "balance_loss": self.balance_loss,
            "z_loss": self.z_loss,
            "bias_update_rate": self.bias_update_rate,
        }
        return [f"--router.{name}={value:g}" for name, value in values.items()]

    def name(self) -> str:
        return f"balance-{self.balance_loss:g}-z-{self.z_loss:g}-bias-{self.bias_update_rate:g}"


STRENGTHS = (1e-3, 3e-3, 1e-2, 3e-2)
SETTINGS = {
    "qwen3_moe": [*(Setting(strength) for strength in STRENGTHS), Setting(1e-2, z_loss=1e-3)],
    "deepseek_v3": [
        *(Setting(strength) for strength in STRENGTHS),
        Setting(1e-2, z_loss=1e-3),
        Setting(1e-4, bias_update_rate=1e-3),
        Setting(1e-3, bias_update_rate=1e-2),
    ],
}


@dataclass(frozen=True)
class Run:
    backbone: str
    setting: Setting
    lr: float
    folder: Path

    def is_finished(self, steps: int) -> bool:
        log = self.folder / "metrics.jsonl"
        return log.exists() and metrics(self.folder)[-1]["step"] == steps

    def train(self, args: argparse.Namespace) -> None:
        flags = [
            *BACKBONES[self.backbone],
            *self.setting.flags(),
            f"--optim.lr={self.lr:g}",
            f"--optim.min_lr={self.lr / 10:g}",
            f"--train.steps={args.steps}",
            f"--optim.warmup_steps={args.steps // 10}",
            "--train.routing_every=1",
            "--train.threads=1",
            f"--eval.every={args.steps}",
            f"--eval.batches={BATCHES}",
            "--checkpoint.every=100",
            "--checkpoint.keep=1",
        ]
        words = ["train", "--config", ROOT / "configs/demo.toml", "--data", args.data, "--run", self.folder]
        log = args.runs / f"{self.folder.name}.log"
        with log.open("a") as output:
            subprocess.run(
                [str(word) for word in (args.program, *words, "--resume", *flags)],
                check=True,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def valid_loss(self) -> float:
        return float(metrics(self.folder)[-1]["valid_loss"])

    def busiest(self) -> float:
        """Largest share of any expert of any layer, mean over the last tenth of the steps."""
        steps = metrics(self.folder)
        return statistics.mean(step["max_expert_share"] for step in steps[-max(1, len(steps) // 10) :])

    def idle(self) -> tuple[int, int]:
        """Experts without a token in the last 100 steps, and all experts."""
        lines = [json.loads(line) for line in (self.folder / "routing.jsonl").read_text().splitlines()]
        sums: dict[tuple[int, int], float] = {}
        for line in lines[-100:]:
            for layer, shares in enumerate(line["expert_share"]):
                for expert, share in enumerate(shares):
                    sums[layer, expert] = sums.get((layer, expert), 0.0) + share
        return sum(total == 0 for total in sums.values()), len(sums)


def all_runs(folder: Path) -> Iterator[Run]:
    """The first learning rate of every setting first."""
    for lr in LEARNING_RATES:
        for backbone, settings in SETTINGS.items():
            for setting in settings:
                yield Run(backbone, setting, lr, folder / f"{backbone}-{setting.name()}-lr-{lr:g}")


def rows(runs: list[Run], backbone: str) -> list[list[str]]:
    """A row per setting, a cell per learning rate; empty where the run is not finished."""
    lines = []
    for setting in SETTINGS[backbone]:
        by_lr = {run.lr: run for run in runs if run.backbone == backbone and run.setting == setting}
        line = [f"{setting.balance_loss:g}", f"{setting.z_loss:g}", f"{setting.bias_update_rate:g}"]
        for lr in sorted(LEARNING_RATES):
            run = by_lr.get(lr)
            if run is None:
                line.append("")
                continue
            idle, experts = run.idle()
            line.append(f"{run.valid_loss():.3f}, {100 * run.busiest():.1f}%, {idle} of {experts}")
        lines.append(line)
    return lines


def main() -> None:
    arguments = parser(__doc__, "balance.md")
    arguments.add_argument("--data", type=Path, required=True, help="prefix of the training half")
    arguments.add_argument("--runs", type=Path, default=ROOT / "runs/balance", help="folder of the runs")
    arguments.add_argument("--program", type=Path, default=PROGRAM, help="the program to run")
    arguments.add_argument("--steps", type=int, default=300, help="optimizer steps of 2,048 tokens")
    arguments.add_argument("--jobs", type=int, default=1, help="runs at a time, each on one thread")
    arguments.add_argument(
        "--page-only", action="store_true", help="train nothing, write the page of the finished runs"
    )
    args = arguments.parse_args()
    if args.quick:
        args.steps = 20
    args.runs.mkdir(parents=True, exist_ok=True)
    runs = list(all_runs(args.runs))

    def train(run: Run) -> None:
        if not run.is_finished(args.steps):
            run.train(args)
        note(f"{run.folder.name}: {run.valid_loss():.4f}, {100 * run.busiest():.1f}%")

    if not args.page_only:
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(train, runs))
    finished = [run for run in runs if run.is_finished(args.steps)]
    head = ["balance loss", "z-loss", "bias update rate", *(f"lr {lr:g}" for lr in sorted(LEARNING_RATES))]
    lines = [
        f"HERO models of the size of `configs/demo.toml` (6 MoE layers, 16 experts, 2 per token), {args.steps} steps "
        "of 8 x 256 tokens, one seed, on the text of `make demo`. Each cell: held-out loss (nats per token), the "
        "busiest expert's share of all tokens (mean over the last tenth of the steps; uniform 12.5%), experts "
        "without a token in the last 100 steps. Empty: not run.",
    ]
    for backbone in BACKBONES:
        lines += ["", f"## `{backbone}`", "", *table(head, rows(finished, backbone))]
    write_page(args, "Load-balancing options", lines)


if __name__ == "__main__":
    main()
