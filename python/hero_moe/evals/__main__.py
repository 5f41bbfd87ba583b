"""`python -m hero_moe.evals`: models on the paper's 13 benchmarks, and their table."""

from __future__ import annotations

import os

# Before anybody imports them: nothing is downloaded, and of the progress bars only our own are shown.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TQDM_DISABLE": "1"}

import argparse  # noqa: E402
import sys  # noqa: E402
from typing import NoReturn  # noqa: E402

from hero_moe.evals.benchmarks import BENCHMARKS, SUITE  # noqa: E402


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"bench: {message} (--help tells more)\n")


def _parser() -> _Parser:
    parser = _Parser(prog="python -m hero_moe.evals", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    models = "run folders, checkpoints, model folders"
    add("--models", nargs="+", metavar="[NAME=]PATH", default=[], help=models)
    add("--data-dir", metavar="DIR", help="with KEY.jsonl and KEY_fewshot.jsonl of every benchmark")
    every = list(BENCHMARKS)
    add("--tasks", nargs="+", metavar="KEY", default=every, help=f"of {', '.join(every)}; all")
    add("--limit", type=int, metavar="N", help="evenly spaced rows of each benchmark instead of all")
    add("--shots", nargs="+", metavar="KEY=N", default=[], help="examples in a prompt, other than usual")
    add("--out", metavar="DIR", default="runs/benchmarks", help="results; the same command resumes")
    add("--restart", action="store_true", help="forget what --out holds of these models and benchmarks")
    backend = "our engine, or transformers with the folder's code"
    add("--backend", choices=("hero", "hf"), default="hero", help=backend)
    add("--batch-size", metavar="N", help="sequences at a time; auto, and 8 with hf")
    add("--device", help="cpu or cuda")
    add("--dtype", choices=("fp32", "bf16", "fp64"), help="of weights and activations; the folder's own")
    unsafe = "run HumanEval's programs without bubblewrap"
    add("--unsafe-code-without-sandbox", action="store_true", help=unsafe)
    add("--include-path", action="store_true", help="print the folder for lm_eval's --include_path")
    return parser


def main(words: list[str] | None = None) -> int:
    """The command; returns its exit status."""
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
        print(f"bench: found no module {error.name}, expected those of hero-moe[lm-eval]", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nbench: stopped; the same command resumes", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
