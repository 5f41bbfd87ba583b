"""`python -m hero_moe.track RUN... --to wandb`: sends configuration and metrics of runs to an experiment tracker.

Follows the runs until they have finished or Ctrl-C. The same command continues where the last one ended."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from hero_moe.report.json_lines import InputError
from hero_moe.report.run_list import run_names
from hero_moe.track.backends import PACKAGES, make_backend
from hero_moe.track.tracking import TrackedRun, follow, say


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"track: {message} (--help shows the options)\n")


def _parser() -> _Parser:
    parser = _Parser(prog="python -m hero_moe.track", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add(
        "runs",
        metavar="RUN",
        nargs="+",
        type=Path,
        help="run folders; those that do not exist yet are awaited",
    )
    add("--to", required=True, choices=tuple(PACKAGES), help="tracker")
    add("--once", action="store_true", help="send what is there now, then exit")
    add("--project", help="project, in MLflow the experiment (default: hero-moe)")
    add("--name", help="name of the run, with one RUN (default: name of the folder)")
    add("--offline", action="store_true", help="wandb: write to RUN/wandb only, for `wandb sync`")
    return parser


def _check(options: argparse.Namespace) -> list[Path]:
    paths = list({path.resolve(): path for path in options.runs}.values())  # each folder once
    if options.name is not None and len(paths) > 1:
        raise InputError(f"--name: found with {len(paths)} runs, expected one")
    for option in ("name", "project"):
        if getattr(options, option) == "":
            raise InputError(f"--{option}: found an empty text, expected a name")
    if options.offline and options.to != "wandb":
        raise InputError(f"--offline: found with --to {options.to}, expected --to wandb")
    for path in paths:
        if (path.exists() and not path.is_dir()) or not path.absolute().parent.is_dir():
            raise InputError(f"{path}: found no folder, expected a run folder")
        if options.once and not (path / "metrics.jsonl").exists():
            raise InputError(f"{path}: found no metrics.jsonl, expected a run folder with --once")
    return paths


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    options = _parser().parse_args(words)
    received: list[int] = []

    def stop(number: int, _: Any) -> None:
        received.append(number)

    try:
        paths = _check(options)
        make_backend(options.to, options.offline)
        runs = [
            TrackedRun(
                path,
                options.to,
                options.project,
                options.name,
                lambda: make_backend(options.to, options.offline),
                default_name=name.replace("/", "-"),
            )
            for path, name in zip(paths, run_names(paths))
        ]
        for path, run in zip(paths, runs):
            if not run.has_metrics:
                say(f"{path}: no metrics yet, waiting for the run to start")
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGTERM, stop)
        follow(runs, once=options.once, stopped=lambda: bool(received))
    except ModuleNotFoundError as error:
        say(f"found no module {error.name}, expected it installed: pip install {PACKAGES[options.to]}")
        return 2
    except InputError as error:
        say(str(error))
        return 2
    except Exception as error:  # of the tracker: network, permissions, storage
        say(
            f"{options.to}: {' '.join(str(error).split())[:300] or type(error).__name__}; the same command continues"
        )
        return 1
    for run in runs:
        say(run.summary)
    return 128 + received[0] if received else 0


if __name__ == "__main__":
    sys.exit(main())
