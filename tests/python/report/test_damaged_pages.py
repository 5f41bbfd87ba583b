"""Random changes of the files that pages are written from: `hero report`, `hero study` and `hero analyze` write the page, or
exit with status 2 and one line that names the file. No traceback, no warning."""

from __future__ import annotations

import io
import json
import random
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from analysis_folder import write_analysis
from conftest import write_run
from hero_moe.analysis import __main__ as analysis
from hero_moe.analysis.reading import load_analysis
from hero_moe.report import __main__ as report
from hero_moe.report.json_lines import InputError
from hero_moe.report.run_list import load_runs
from hero_moe.study import __main__ as study
from hero_moe.study.reading import load_study
from hero_moe.study.statistics import results
from random_cases import Case, property_tests, reproduce
from strategies import DrawFn
from study_folder import write_study

READINGS = 30  # changed files per case that are only read
RUN_FILES = ("config.toml", "metrics.jsonl", "routing.jsonl", "starts.jsonl", "eval.json")
START = {
    "step": 0,
    "data": ["0.5:a", "b"],
    "token_files": {f"{name}.bin": {"bytes": 10, "sha256": name} for name in "ab"},
    "tokenizer_sha256": "0123",
    "options": {},
    "changed_data": [],
}
RESUME = START | {"step": 6, "options": {"optim.lr": {"from": "1", "to": "2"}}, "changed_data": ["a.bin"]}
# Numbers up to those that a diverged run may log.
VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1,
    2**63,
    10**400,
    1e38,
    -1e38,
    1e-45,
    0.5,
    "",
    "x",
    "1",
    [],
    [1.0],
    [None],
    {},
]
VALUES += [{"a": 1}, [[0.5]], "../x"]


def run(path: Path, kind: str) -> Path:
    write_run(path, kind=kind, steps=12)
    parent = {"parent": {"checkpoint": "other/checkpoints/step-3", "step": 3}} if kind == "hero" else {}
    (path / "starts.jsonl").write_text(json.dumps(START | parent) + "\n" + json.dumps(RESUME) + "\n")
    return path


@dataclass
class Page:
    """Files, of which one that is listed more often is changed more often; what reads them, and the command that also
    draws."""

    files: list[Path]
    read: Callable[[], Any]
    write: Callable[[], int]


def report_page(folder: Path) -> Page:
    runs = [run(folder / kind, kind) for kind in ("baseline", "hero")]
    command = [*map(str, runs), "--out", str(folder / "report.html")]
    files = [path / name for path in runs for name in RUN_FILES]
    return Page(files, lambda: load_runs(runs), lambda: report.main(command))


def study_page(folder: Path) -> Page:
    write_study(folder)
    files = [folder / "seed-2/hero" / name for name in RUN_FILES if name != "starts.jsonl"]
    files += [folder / "study.json"] * 6
    return Page(files, lambda: results(load_study(folder)), lambda: study.main([str(folder)]))


def analysis_page(folder: Path) -> Page:
    out = folder / "out"
    write_analysis(out, layers=3, experts=4, tokens=5)
    files = [out / "analysis.json"] * 5 + [out / "analysis.safetensors"]
    return Page(files, lambda: load_analysis(out), lambda: analysis.main([str(out)]))


PAGES = {"report": report_page, "study": study_page, "analysis": analysis_page}


@st.composite
def cases(draw: DrawFn) -> Case:
    """Which page, and the seed of the changes."""
    return {
        "page": draw(st.sampled_from(sorted(PAGES))),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }


def changed(value: Any, rng: random.Random) -> Any:
    """A JSON value with one part replaced, left out or repeated."""
    if isinstance(value, (dict, list)) and value and rng.random() < 0.9:
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if rng.random() < 0.15:
            if isinstance(value, list) and rng.random() < 0.5:
                return [*value, value[key]]
            kept = [k for k in (value if isinstance(value, dict) else range(len(value))) if k != key]
            return {k: value[k] for k in kept} if isinstance(value, dict) else [value[k] for k in kept]
        other = changed(value[key], rng)
        if isinstance(value, dict):
            return value | {key: other}
        return [*value[:key], other, *value[key + 1 :]]
    return rng.choice(VALUES)


def damage(file: Path, rng: random.Random) -> None:
    """Changes a file: a part of its JSON, a value of its TOML, or bytes."""
    content = file.read_bytes()
    if file.suffix == ".safetensors" or rng.random() < 0.2:
        at = rng.randrange(len(content) + 1)
        file.write_bytes(
            content[:at] + rng.choice([b"", b"\0", b"\xff", b"{", b"9"]) + content[at + rng.randrange(3) :]
        )
        return
    lines = content.decode().splitlines()
    at = rng.randrange(len(lines))
    if file.suffix == ".toml":
        key = lines[at].split(" = ")[0]
        lines[at] = (
            f"{key} = {rng.choice(['-1', '0', '1e400', 'true', '[]', '[1]', '{}', 'nan', '1979-05-27'])}"
        )
    elif file.suffix == ".jsonl" and rng.random() < 0.15:
        lines[at : at + 1] = rng.choice([[], [lines[at]] * 2, [lines[0]]])
    else:
        lines[at] = json.dumps(changed(json.loads(lines[at]), rng))
    file.write_text("\n".join(lines) + "\n")


def check_reading(page: Page, folder: Path, rng: random.Random) -> None:
    """One change that is undone afterwards."""
    file = rng.choice(page.files)
    before = file.read_bytes()
    damage(file, rng)
    try:
        page.read()
    except InputError as error:
        assert str(folder) in str(error) and "\n" not in str(error), error
    file.write_bytes(before)


def check(case: Case, folder: Path) -> None:
    rng = random.Random(case["seed"])
    page = PAGES[case["page"]](folder)
    errors = io.StringIO()
    with warnings.catch_warnings(), redirect_stderr(errors), redirect_stdout(io.StringIO()):
        warnings.simplefilter("error")
        for _ in range(READINGS):
            check_reading(page, folder, rng)
        damage(rng.choice(page.files), rng)
        status = page.write()
    text = errors.getvalue()
    if status == 0:
        assert text == ""
    else:
        assert status == 2 and text.count("\n") == 1 and str(folder) in text, f"exit status {status}: {text}"


test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    reproduce(check)
