"""`python -m hero_moe.study DIR`: writes results.json, table.md, figures and report.html of a study.

Exit status 2, with one line on stderr, for an invalid command line, study.json or run folder; 1 if the output
cannot be written.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from hero_moe.report import page
from hero_moe.report.figures import SMOOTHED, SMOOTHED_DIFFERENCE, STYLE, to_svg
from hero_moe.report.json_lines import InputError
from hero_moe.report.output import write_atomically
from hero_moe.study import drawing, table
from hero_moe.study.reading import Study, load_study
from hero_moe.study.statistics import Result, results

CAPTIONS = {
    "loss": (
        "Training loss over steps, mean over seeds (each run: centered mean over "
        f"{SMOOTHED:.0%} of its steps); inset: last fifth of the steps."
    ),
    "advantage": (
        "Advantage: the baseline's loss minus the variant's at the same step and seed (centered mean over "
        f"{SMOOTHED_DIFFERENCE:.0%} of the steps). Line: mean over seeds; band: one standard deviation."
    ),
    "final": (
        "Final advantage: ticks are seeds, the dot is the mean, the bar is the 95% confidence interval of "
        "the mean (Student's t over paired differences)."
    ),
}


def _figures(study: Study, numbers: Sequence[Result]) -> dict[str, Figure]:
    figures = {"loss": drawing.loss_figure(study)}
    if any(one.advantage.by_seed for one in numbers):
        figures["advantage"] = drawing.advantage_figure(study)
        figures["final"] = drawing.final_figure(study, numbers)
    return figures


def _notes(study: Study, numbers: Sequence[Result]) -> str:
    notes = [
        "Final losses are means over the last tenth of the steps, without auxiliary terms. Advantages are "
        "paired: runs with the same seed use the same batches and random initialization. * means that the "
        "95% interval excludes zero; with several variants, some intervals exclude zero by chance. Late "
        "growth: mean advantage over the last fifth of the steps minus that over the middle fifth. Peak "
        "expert load: share of all tokens that the busiest expert of any layer receives in a step, mean "
        "over the last tenth of the steps. Throughput depends on other load on the machine.",
    ]
    single = [one.variant.name for one in numbers if len(one.advantage.by_seed) == 1]
    if single:
        notes.append(f"A single pair of runs has no interval and is not evidence: {', '.join(single)}.")
    noise = table.noise_in_words(numbers)
    if noise:
        notes.append(noise)
    same = drawing.variants_in_words(study.variants)
    if same:
        notes.append(f"Identical models, trained once: {same}.")
    cut = [f"{v.name} {v.layers_cut}" for v in study.variants if v.layers_cut]
    if cut:
        notes.append(
            f"Number of routers, out of {study.moe_layers}, whose window hides layers: {', '.join(cut)}."
        )
    uneven = {len(v.runs) for v in study.trained}
    if len(uneven) > 1:
        notes.append(
            "Variants have finished different numbers of seeds: rows cover different numbers of runs."
        )
    return " ".join(notes)


def _table(header: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> str:
    heads = [(title, small) if small else title for title, small in header]
    return page.table(heads, [[page.cell(text) for text in row] for row in rows])


def write_results(folder: Path) -> list[Path]:
    """Writes all output files and returns their paths. Raises `InputError` and `OSError`."""
    study = load_study(folder)
    numbers = results(study)
    files = {"results.json": json.dumps(table.as_json(study, numbers), indent=1) + "\n"}
    files["table.md"] = table.markdown(study, numbers)
    (folder / "figures").mkdir(exist_ok=True)
    parts = []
    with matplotlib.rc_context(STYLE):
        for name, figure in _figures(study, numbers).items():
            for ending in ("png", "svg"):
                figure.savefig(folder / "figures" / f"{name}.{ending}", dpi=160)
            parts.append(page.figure(to_svg(figure, name, CAPTIONS[name]), CAPTIONS[name]))
    files["report.html"] = page.document(
        f"Study of {study.config}",
        table.summary(study, numbers),
        [
            page.section(
                "Results",
                *(_table(header, rows) for header, rows in table.tables(study, numbers)),
                page.paragraph(_notes(study, numbers)),
            ),
            page.section("Figures", *parts),
        ],
    )
    for name, text in files.items():
        write_atomically(folder / name, text)
    return [folder / name for name in files]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m hero_moe.study", description=__doc__.splitlines()[0])
    parser.add_argument("folder", metavar="DIR", type=Path, help="folder of hero study --out")
    options = parser.parse_args(arguments)
    try:
        written = write_results(options.folder)
    except InputError as error:
        print(f"hero study: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"hero study: {error.filename}: cannot be written ({error.strerror})", file=sys.stderr)
        return 1
    print((options.folder / "table.md").read_text("utf-8"))
    print(f"report: {written[-1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
