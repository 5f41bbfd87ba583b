"""Losses of the small models on a GPU against those on the CPU, from the same weights and data.

Writes docs/results/gpu-losses.md: relative differences of the loss over the first steps, by model and dtype. A run on
the GPU and one on the CPU train at the same time. Without `--data`, on random tokens.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from rounds import PROGRAM, Target, metrics, own_command, parse_on_gpu, parser, table, write_page
from token_files import write_tokens

MODELS = ("small-qwen3", "small-deepseek")
# Of the first step: sums in another order, in bf16 rounded to 8 bits. After some steps nearly equal scores select other
# experts.
BOUNDS = {"fp32": 1e-6, "bf16": 1e-3}
FIRST = 10  # steps of a column


def start(run: Path, data: str, model: str, dtype: str, device: str, steps: int) -> subprocess.Popen[bytes]:
    words = ["train", "--config", model, "--data", data, "--run", str(run), f"--train.device={device}"]
    words += [
        f"--train.dtype={dtype}",
        f"--train.steps={steps}",
        f"--optim.warmup_steps={min(10, steps)}",
        "--eval.every=0",
    ]
    return subprocess.Popen([str(PROGRAM), *words], stdout=subprocess.DEVNULL)


def main() -> None:
    args_parser = parser(__doc__, "gpu-losses.md", rounds=1)
    args_parser.add_argument("--data", help="prefix of token files with a vocabulary of at most 8,192")
    args, device = parse_on_gpu(args_parser)
    steps = 2 if args.quick else 50
    with tempfile.TemporaryDirectory() as work:
        data = args.data or str(write_tokens(Path(work), 8192))
        losses = {}
        for model in MODELS:
            for dtype in BOUNDS:
                runs = {}
                for side, place in (("cpu", "cpu"), ("gpu", args.device)):
                    run = Path(work) / f"{model}-{dtype}-{side}"
                    runs[side] = run, start(run, data, model, dtype, place, steps)
                for side, (run, process) in runs.items():
                    if status := process.wait():
                        raise SystemExit(f"{run.name}: exit status {status}")
                    losses[model, dtype, side] = [line["loss"] for line in metrics(run)]
    rows, targets = [], []
    for model in MODELS:
        for dtype, bound in BOUNDS.items():
            cpu, other = losses[model, dtype, "cpu"], losses[model, dtype, "gpu"]
            relative = [abs(a - b) / a for a, b in zip(cpu, other, strict=True)]
            targets.append(
                Target(
                    f"{model}, {dtype}: difference in the first step",
                    bound,
                    [relative[0]],
                    own_command(),
                    at_least=False,
                    places=9,
                )
            )
            found = (relative[0], max(relative[:FIRST]), max(relative))
            rows.append(
                [model, dtype, *(f"{value:.1e}" for value in found), f"{cpu[-1]:.4f}", f"{other[-1]:.4f}"]
            )
    head = [
        "model",
        "dtype",
        "step 1",
        f"first {FIRST}",
        f"first {steps}",
        "last loss, CPU",
        "last loss, GPU",
    ]
    about = [f"{steps} steps on {device} and on the processor: largest relative difference of the loss.", ""]
    write_page(args, "Losses on a GPU and on the CPU", [*about, *table(head, rows)], targets)


if __name__ == "__main__":
    main()
