"""The report section on validation during training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from conftest import MakeRun, edit_lines
from hero_moe.report import __main__ as report
from hero_moe.report.run_files import load_run


def validated(run: Path, losses: dict[int, dict[str, float | None]]) -> Path:
    """Adds validations of equally large data sets to a run's metrics."""

    def add(lines: list[str]) -> list[str]:
        out = []
        for line in lines:
            record = json.loads(line)
            if valid := losses.get(record["step"]):
                values = [value for value in valid.values() if value is not None]
                record |= {"valid_loss": sum(values) / len(values) if values else None, "valid": valid}
            out.append(json.dumps(record) + "\n")
        return out

    edit_lines(run / "metrics.jsonl", add)
    return run


def page_of(folder: Path, *runs: Path) -> str:
    out = folder / "report.html"
    assert report.main([*map(str, runs), "--out", str(out)]) == 0
    return out.read_text()


def test_curves_and_table(tmp_path: Path, make_run: MakeRun) -> None:
    first = validated(
        make_run("first", steps=30),
        {10: {"a": 5.0, "b": 6.0}, 20: {"a": 4.0, "b": 4.5}, 30: {"a": 4.25, "b": 4.75}},
    )
    second = make_run("second", steps=30, kind="hero")
    series = load_run(first, "first").metrics.valid
    assert series is not None and series.lowest == 1
    assert series.steps.tolist() == [10, 20, 30] and series.loss.tolist() == [5.5, 4.25, 4.5]
    assert {name: values.tolist() for name, values in series.sets.items()} == {
        "a": [5.0, 4.0, 4.25],
        "b": [6.0, 4.5, 4.75],
    }
    assert load_run(second, "second").metrics.valid is None
    text = page_of(tmp_path, first, second)
    section = text[text.index("<h2>Validation</h2>") : text.index("<h2>Evaluation</h2>")]
    assert 'aria-label="Validation loss over steps"' in section
    cells = [cell.split(">")[-1] for cell in section[section.index("<td") :].split("</td>")[:7]]
    assert cells == ["first", "30", "4.500", "4.250", "4.750", "4.250", "20"]
    assert "different data" not in section


def test_runs_with_different_data_are_noted(tmp_path: Path, make_run: MakeRun) -> None:
    first = validated(make_run("first", steps=10), {10: {"a": 5.0}})
    second = validated(make_run("second", steps=10, kind="hero"), {5: {"b": None}, 10: {"b": 4.0}})
    series = load_run(second, "second").metrics.valid
    assert series is not None and np.isnan(series.loss[0]) and series.lowest == 1
    assert "validated on different data" in page_of(tmp_path, first, second)


def test_no_section_without_validation(tmp_path: Path, make_run: MakeRun) -> None:
    assert "<h2>Validation</h2>" not in page_of(tmp_path, make_run("one", steps=10))


@pytest.mark.parametrize(
    ("change", "named"),
    [({"valid_loss": "x", "valid": {}}, "valid_loss"), ({"valid_loss": 1.0, "valid": [1.0]}, "valid:")],
)
def test_errors(
    change: dict[str, object], named: str, tmp_path: Path, make_run: MakeRun,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run = make_run("one", steps=2)
    edit_lines(
        run / "metrics.jsonl", lambda lines: [lines[0], json.dumps(json.loads(lines[1]) | change) + "\n"]
    )
    assert report.main([str(run), "--out", str(tmp_path / "r.html")]) == 2
    assert f"metrics.jsonl:2: {named}" in capsys.readouterr().err
