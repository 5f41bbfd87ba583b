"""`hero report RUN... --out FILE`: one self-contained HTML page that compares training runs.

The page needs no network and no other files. Exit status 2, with one line on stderr, for an invalid command
line or run folder; 1 if the page cannot be written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import matplotlib

from hero_moe.report import comparability, page
from hero_moe.report.figures import STYLE
from hero_moe.report.json_lines import InputError
from hero_moe.report.norm_section import norm_section
from hero_moe.report.output import write_atomically
from hero_moe.report.processes import run_tasks
from hero_moe.report.routing_sections import history_section, routing_section, speed_section
from hero_moe.report.run_files import Run
from hero_moe.report.run_list import load_runs
from hero_moe.report.sections import (
    Comparison,
    configuration_section,
    evaluation_section,
    loss_section,
    single_runs_in_words,
    title_and_summary,
)
from hero_moe.report.valid_section import valid_section

SECTIONS = (
    loss_section,
    valid_section,
    evaluation_section,
    routing_section,
    history_section,
    norm_section,
    speed_section,
    comparability.data_section,
    configuration_section,
)
PARALLEL_RUNS = 8  # with fewer, drawing takes less than two seconds


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}, expected RUN... --out FILE")


def build_page(runs: list[Run]) -> str:
    """The page that compares `runs`, at least one, in this order."""
    shown = Comparison.of(runs)
    title, summary = title_and_summary(shown)
    tasks = [partial(build, shown) for build in SECTIONS]
    with matplotlib.rc_context(STYLE):
        sections = run_tasks(tasks, "drawing the page", parallel=len(runs) >= PARALLEL_RUNS)
    for text, css in (
        (single_runs_in_words(shown), "summary"),
        (comparability.warning(shown), "summary warning"),
    ):
        sections.insert(0, page.paragraph(text, css) if text else "")
    return page.document(title, summary, [section for section in sections if section])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    parser = _Parser(prog="hero report", description="Compare training runs on one self-contained HTML page.")
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        type=Path,
        help="run folders; the baseline is the first with router.kind = baseline, or else the first",
    )
    parser.add_argument("--out", metavar="FILE", required=True, type=Path, help="the page to write")
    try:
        options = parser.parse_args(arguments)
        if not options.out.parent.is_dir() or options.out.is_dir():
            raise InputError(f"--out: {options.out}: expected a file in an existing folder")
        paths = list({path.resolve(): path for path in options.runs}.values())  # each folder once
        text = build_page(load_runs(paths))
    except InputError as error:
        print(f"hero report: {error}", file=sys.stderr)
        return 2
    try:
        write_atomically(options.out, text)
    except OSError as error:
        print(f"hero report: {options.out}: cannot be written ({error.strerror or error})", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
