"""`python -m hero_moe.evals`: evaluates models on the paper's 13 benchmarks and compares them."""

from __future__ import annotations

import os

# Set before the imports: no downloads, and no progress bars except our own.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TQDM_DISABLE": "1"}

import argparse  # noqa: E402
import sys  # noqa: E402
from typing import NoReturn  # noqa: E402

from hero_moe.evals.benchmarks import BENCHMARKS, SUITE  # noqa: E402


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"evals: {message} (--help shows the options)\n")


def _parser() -> _Parser:
    parser = _Parser(prog="python -m hero_moe.evals", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    models = "run folders, checkpoints, model folders"
    add("--models", nargs="+", metavar="[NAME=]PATH", default=[], help=models)
    add("--data-dir", metavar="DIR", help="folder with KEY.jsonl and KEY_fewshot.jsonl of every benchmark")
    every = list(BENCHMARKS)
    add("--tasks", nargs="+", metavar="KEY", default=every, help=f"some of {', '.join(every)} (default: all)")
    add("--limit", type=int, metavar="N", help="evenly spaced rows of each benchmark instead of all")
    add("--shots", nargs="+", metavar="KEY=N", default=[], help="few-shot examples, instead of the default")
    add("--out", metavar="DIR", default="runs/benchmarks", help="output folder; the same command resumes")
    add("--restart", action="store_true", help="discard results of these models and benchmarks in --out")
    backend = "hero: our engine; hf: transformers with the code in the model folder"
    add("--backend", choices=("hero", "hf"), default="hero", help=backend)
    add("--batch-size", metavar="N", help="sequences per batch (default: auto; 8 with hf)")
    add("--device", help="cpu or cuda")
    add("--dtype", choices=("fp32", "bf16", "fp64"), help="of weights and activations (default: as stored)")
    unsafe = "run HumanEval programs without bubblewrap"
    add("--unsafe-code-without-sandbox", action="store_true", help=unsafe)
    add("--include-path", action="store_true", help="print the folder for lm_eval --include_path")
    return parser


def main(words: list[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    parser = _parser()
    options = parser.parse_args(words)
    if options.include_path:
        print(SUITE)
        return 0
    for name in ("models", "data_dir"):
        if not getattr(options, name):
            parser.error(f"--{name.replace('_', '-')}: found none, expected some")
    try:
        from hero_moe.evals.comparison import compare_models

        print(compare_models(options), end="")
    except ModuleNotFoundError as error:
        print(f"evals: found no module {error.name}, expected hero-moe[lm-eval] installed", file=sys.stderr)
        return 2
    except (ValueError, OSError, RuntimeError) as error:
        print(f"evals: {' '.join(str(error).split())}", file=sys.stderr)
        return 1 if isinstance(error, RuntimeError) else 2
    except KeyboardInterrupt:
        print("\nevals: interrupted; the same command resumes", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
