"""`python -m hero_moe.analysis OUT [--runs RUN...]`: figures and a page from the output of `hero analyze`.

Exit status 2, with one line on stderr, for an invalid command line or invalid files; nothing is written then.
1 if the output cannot be written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import matplotlib

from hero_moe.analysis.drawing import Rendered
from hero_moe.analysis.reading import load_analysis
from hero_moe.analysis.sections import build_report
from hero_moe.report.figures import STYLE
from hero_moe.report.json_lines import InputError
from hero_moe.report.output import write_atomically
from hero_moe.report.run_list import load_runs
from hero_moe.report.sections import Comparison

PROGRAM = "hero analyze"
# All figure names; figures of an earlier analysis that are not drawn now are removed.
NAMES = (
    "layer-dependency",
    "layer-dependency-centered",
    "coupling-by-distance",
    "expert-bias",
    "coupling-matrix",
    "coupling-matrix-centered",
    "coupling-adjacent",
    "coupling-adjacent-centered",
    "effective-rank",
    "effective-rank-centered",
    "expert-utilisation",
    "history-share",
    "routing-agreement",
    "removal",
    "removal-centered",
    "removal-loss",
    "removal-loss-centered",
    "routing-paths",
    "loss",
    "loss-advantage",
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}, expected OUT [--runs RUN...]")


def write_figures(folder: Path, figures: Sequence[Rendered]) -> None:
    """Writes PNG and SVG of each figure atomically and removes figures that are no longer drawn."""
    folder.mkdir(exist_ok=True)
    for figure in figures:
        write_atomically(folder / f"{figure.name}.png", figure.png)
        write_atomically(folder / f"{figure.name}.svg", figure.svg)
    for name in set(NAMES) - {figure.name for figure in figures}:
        for ending in ("png", "svg"):
            (folder / f"{name}.{ending}").unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    parser = _Parser(prog=PROGRAM, description="Figures and a page from the output of `hero analyze`.")
    parser.add_argument(
        "out",
        metavar="OUT",
        type=Path,
        help="folder with analysis.json and analysis.safetensors; also the output folder",
    )
    parser.add_argument(
        "--runs",
        metavar="RUN",
        nargs="+",
        default=[],
        type=Path,
        help="run folders for the loss figures; the baseline is the first with router.kind = baseline",
    )
    try:
        options = parser.parse_args(arguments)
        analysis = load_analysis(options.out)
        paths = list({path.resolve(): path for path in options.runs}.values())  # each folder once
        runs = load_runs(paths)
        with matplotlib.rc_context(STYLE):
            report = build_report(analysis, Comparison.of(runs) if runs else None)
    except InputError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    try:
        write_figures(options.out / "figures", report.figures)
        write_atomically(options.out / "report.html", report.html)
    except OSError as error:
        where = error.filename or options.out
        print(f"{PROGRAM}: {where}: cannot be written ({error.strerror or error})", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
