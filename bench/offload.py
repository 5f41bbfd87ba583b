"""Memory and speed of training a model of two billion parameters with recomputation and the optimizer state in files.

Writes docs/results/PROCESSOR/offload.md. Needs 24 GiB of memory and 26 GB of disk space in the temporary folder
(TMPDIR). Memory is sampled from /proc while the first steps run; then the run is stopped, without a checkpoint.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path

from machine import available_kib, kib
from rounds import (
    PROGRAM,
    ROOT,
    Target,
    cpu_page,
    hero_json,
    note,
    own_command,
    parser,
    spread,
    table,
    write_page,
)
from token_files import write_tokens

GIB = 1 << 30
VOCABULARY = 8192  # of the tokens, which speed does not depend on
BYTES_PER_PARAMETER = {"files": 12, "all in memory": 18}


def train(config: str, steps: int, work: Path) -> tuple[float, float, float]:
    """Trains this many steps; the largest RssAnon and the smallest MemAvailable in GiB, and the last step's tokens
    per second. RuntimeError if the run ends."""
    run = work / "run"
    command = [PROGRAM, "train", "--config", ROOT / f"configs/{config}.toml", "--run", run]
    command += [
        "--data",
        write_tokens(work, VOCABULARY),
        f"--optim.offload_folder={work}",
        "--train.device=cpu",
    ]
    command += ["--train.recompute=true", "--train.global_batch=4", f"--train.steps={steps + 1}"]
    command += [
        "--train.log_every=1",
        "--optim.warmup_steps=1",
        "--eval.every=0",
        "--checkpoint.asynchronous=false",
    ]
    anonymous, available = 0, 1 << 62
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen([str(word) for word in command], stderr=errors)
        status, log = Path(f"/proc/{process.pid}/status"), run / "metrics.jsonl"
        try:
            while not log.exists() or log.read_text().count("\n") < steps:
                if process.poll() is not None:
                    errors.seek(0)
                    raise RuntimeError(f"exit status {process.returncode}: {errors.read().decode()[-500:]}")
                anonymous = max(anonymous, kib(status, "RssAnon"))
                available = min(available, available_kib())
                time.sleep(0.2)
        finally:
            process.kill()
            process.wait()
    rate = json.loads(log.read_text().splitlines()[steps - 1])["tokens_per_second"]
    return anonymous / (1 << 20), available / (1 << 20), rate


def main() -> None:
    args_parser = parser(__doc__, cpu_page("offload.md"), rounds=1)
    args_parser.add_argument("--steps", type=int, default=2, help="steps of a run")
    args = args_parser.parse_args()
    config = "qwen3-2b"
    if args.quick:
        config, args.rounds, args.steps = "small-qwen3", 1, 1
    anonymous, available, rates = [], [], []
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory() as work:
            for values, value in zip(
                (anonymous, available, rates), train(config, args.steps, Path(work)), strict=True
            ):
                values.append(value)
        note(f"round {number + 1}/{args.rounds}: {anonymous[-1]:.1f} GiB, {rates[-1]:.1f} tokens/s")
    cost = hero_json("cost", "--config", ROOT / f"configs/{config}.toml", "--json")
    parameters = int(cost["parameters"]["total"]["hero"])
    files, everything = (parameters * n / GIB for n in BYTES_PER_PARAMETER.values())
    target = Target(
        f"training a model of {parameters / 1e9:.1f} billion parameters, memory that cannot be written to files",
        24.0,
        anonymous,
        own_command(),
        at_least=False,
        unit=" GiB",
        places=1,
    )
    rows = [
        ["memory that cannot be written to the files (`RssAnon`), maximum", spread(anonymous, 1, " GiB")],
        ["memory available to other programs, minimum", spread(available, 1, " GiB")],
        ["files (12 bytes per parameter)", f"{files:.1f} GiB"],
        [f"tokens/s, step {args.steps}", spread(rates, 1)],
    ]
    write_page(
        args,
        "A model of two billion parameters in 24 GiB",
        [
            f"`configs/{config}.toml` ({parameters:,} parameters), HERO, bf16, recomputation, fp32 weights and moments in "
            "files (`optim.offload_folder`), 4 sequences per step.",
            "",
            *table(["", "median (range over rounds)" if args.rounds > 1 else ""], rows),
            "",
            "`VmHWM` and the logged `peak_memory_mib` also count mapped pages of the files, which the kernel drops if "
            "other programs need memory. Without the files, weights, gradients, fp32 weights and moments alone take "
            f"{BYTES_PER_PARAMETER['all in memory']} bytes per parameter, {everything:.1f} GiB; moments in bf16 would "
            f"still need {parameters * 14 / GIB:.1f} GiB. A checkpoint needs another {files:.1f} GiB of disk.",
        ],
        [target],
    )


if __name__ == "__main__":
    main()
