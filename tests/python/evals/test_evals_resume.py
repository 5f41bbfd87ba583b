"""Interrupted comparisons resume and match uninterrupted ones; tables computed by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance

import evals_data
from evals_models import Oracle
from hero_moe.evals import __main__ as command
from hero_moe.evals import answers
from hero_moe.evals.benchmarks import BENCHMARKS
from hero_moe.evals.models import Model
from hero_moe.evals.table import compare, latex, markdown, mean_of, values_csv

KEYS = ("gsm8k", "arc_c", "lambada")


class Interrupted(Oracle):
    """Raises KeyboardInterrupt at call number `stop`."""

    def __init__(self, folder: Path, stop: int) -> None:
        super().__init__(folder, wrong=4)
        self.calls, self.stop = 0, stop

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.stop:
            raise KeyboardInterrupt

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        self._count()
        return super().loglikelihood(requests)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        self._count()
        return super().generate_until(requests)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 rows for each of KEYS."""
    folder = tmp_path_factory.mktemp("evals")
    evals_data.write_all(folder, dict.fromkeys(BENCHMARKS, []), 30, 0)
    return folder


Run = Callable[..., int]


@pytest.fixture
def run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command on the models `one` and `two`, with eight items between two writes."""
    monkeypatch.setattr(answers, "_ITEMS_PER_WRITE", {"loglikelihood": 8, "generate_until": 8})
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")

    def run(one: Oracle, *words: str, out: str = "out", data: Path = folder) -> int:
        two = Oracle(folder, one.limit, wrong=2)
        monkeypatch.setattr(Model, "open", lambda model: one if model.name == "one" else two)
        paths = ["--models", str(tmp_path / "one"), str(tmp_path / "two")]
        fixed = ["--data-dir", str(data), "--out", str(tmp_path / out), "--tasks", *KEYS]
        return command.main([*paths, *fixed, *words])

    return run


def written(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("stop", [1, 3, 6, 12])
def test_resume(
    run: Run, folder: Path, tmp_path: Path, stop: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four writes for each of three benchmarks; interrupted before the first write, within the first and the
    second benchmark, and before the last write."""
    uninterrupted = Oracle(folder, wrong=4)
    assert run(uninterrupted, out="uninterrupted") == 0
    expected = written(tmp_path / "uninterrupted")
    assert "one/gsm8k.jsonl" in expected and not any("answers" in name for name in expected)

    assert run(Interrupted(folder, stop)) == 130
    assert "the same command resumes" in capsys.readouterr().err
    assert not (tmp_path / "out" / "table.md").exists()
    unfinished = list((tmp_path / "out").rglob("*.answers.jsonl"))
    assert len(unfinished) == 1
    with unfinished[0].open("a") as out:
        out.write('{"asked": "0123", "answ')  # as after a kill during a write
    rest = Oracle(folder, wrong=4)
    assert run(rest) == 0
    assert written(tmp_path / "out") == expected
    each = {"gsm8k": 1, "arc_c": 4, "lambada": 1}
    saved = [each[key] * min(8, 30 - 8 * write) for key in KEYS for write in range(4)]
    assert rest.asked == uninterrupted.asked - sum(saved[: stop - 1])

    idle = Oracle(folder, wrong=4)
    assert run(idle) == 0
    assert idle.asked == 0 and written(tmp_path / "out") == expected


def test_rejects_changed_settings(
    run: Run, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For unfinished and finished results."""
    assert run(Interrupted(folder, 6)) == 130
    before = written(tmp_path / "out")
    other = tmp_path / "data"
    other.mkdir()
    for path in folder.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    evals_data.write(other / "arc_c_fewshot.jsonl", evals_data.read(folder / "arc_c_fewshot.jsonl")[::-1])
    capsys.readouterr()

    def rejects(message: str, *words: str, **options: Any) -> None:
        assert run(Oracle(folder), *words, **options) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and message in error, error
        assert "--restart starts over" in error
        assert written(tmp_path / "out") == before

    rejects("gsm8k.jsonl: limit: found results of null, expected 5", "--limit", "5")
    rejects("arc_c.answers.jsonl: shots: found results of 0, expected 2", "--shots", "arc_c=2")
    rejects('gsm8k.jsonl: dtype: found results of null, expected "bf16"', "--dtype", "bf16")
    rejects("arc_c.answers.jsonl: data: found results of", data=other)
    (tmp_path / "one" / "model.safetensors").write_text("new")
    rejects("one/gsm8k.jsonl: model: found results of")
    again = Oracle(folder, 5, wrong=4)
    assert run(again, "--limit", "5", "--restart") == 0
    assert again.asked == 5 * (1 + 4 + 1)


def test_rejects_damaged_answers_and_output(
    run: Run, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(Interrupted(folder, 6)) == 130
    answered = next((tmp_path / "out").rglob("*.answers.jsonl"))
    answered.write_text(answered.read_text().splitlines()[0] + "\n{}\n")
    (tmp_path / "file").write_text("")
    capsys.readouterr()
    for out, message in (("out", f"{answered}: line 2: expected"), ("file/out", "Not a directory")):
        assert run(Oracle(folder), out=out) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert message in error, error


def test_items(run: Run, folder: Path, tmp_path: Path) -> None:
    """The saved fields of every item."""
    assert run(Oracle(folder, wrong=4)) == 0
    header, *items = map(json.loads, (tmp_path / "out" / "one" / "gsm8k.jsonl").read_text().splitlines())
    assert header["shots"] == 5 and header["metrics"]["exact_match,strict-match"] == pytest.approx(22 / 30)
    assert [item["doc"] for item in items] == list(range(30))
    assert [item["score"] for item in items] == [float(n % 4 != 0) for n in range(30)]
    assert items[1]["response"] == " It is so.\n#### 8\n\n" and items[1]["read"] == "8"
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    change = results["differences"]["two"]["gsm8k"]
    differences = [(n % 2 != 0) - (n % 4 != 0) for n in range(30)]
    mean = sum(differences) / 30
    error = math.sqrt(sum((d - mean) ** 2 for d in differences) / (30 * 29))
    assert change == {"score": pytest.approx(100 * mean), "error": pytest.approx(100 * error), "mark": "**"}
    assert (tmp_path / "out" / "table.md").read_text().startswith("| Model ")


def test_table_computed_by_hand() -> None:
    """Means 50, 75 and 25 of four items; d = (1, 0, 0, 0) and (0, 0, -1, 0), errors 25."""
    scores = {
        "a": {"gsm8k": [0.0, 1.0, 0.0, 1.0], "bbh": [1.0, 1.0, 1.0, 0.0]},
        "b_2": {"gsm8k": [1.0, 1.0, 0.0, 1.0], "bbh": [1.0, 1.0, 0.0, 0.0]},
    }
    table = compare(scores)
    # sum (x - m)^2 = 1 and 3/4; n (n - 1) = 12
    half, most = 100 * math.sqrt(1 / 12), 100 * math.sqrt(0.75 / 12)
    assert most == 25.0
    assert [table.models["a"][k].mean for k in table.keys] == [50, 75, 62.5]
    assert [table.models["b_2"][k].mean for k in table.keys] == [75, 50, 62.5]
    assert table.models["a"]["gsm8k"].error == pytest.approx(half)
    assert table.models["a"]["average"].error == pytest.approx(math.hypot(half, most) / 2)
    change = table.differences["b_2"]
    pairs = [(change[k].mean, round(change[k].error or 0, 6)) for k in ("gsm8k", "bbh")]
    assert pairs == [(25, 25), (-25, 25)]
    assert change["average"].mean == 0 and change["average"].error == pytest.approx(math.hypot(25, 25) / 2)
    assert [change[k].mark for k in table.keys] == ["", "", ""]
    assert markdown(table) == (
        "| Model   |  GSM8K |    BBH |  Avg. |\n"
        "|---------|-------:|-------:|------:|\n"
        "| a       |  50.00 |  75.00 | 62.50 |\n"
        "| ±       |  28.87 |  25.00 | 19.09 |\n"
        "| b_2     |  75.00 |  50.00 | 62.50 |\n"
        "| ±       |  25.00 |  28.87 | 19.09 |\n"
        "| b_2 − a | +25.00 | -25.00 | +0.00 |\n"
        "| ±       |  25.00 |  25.00 | 17.68 |\n"
    )
    lines = latex(table).splitlines()
    assert lines[0] == r"\begin{tabular}{l|cc|c}"
    assert r"b\_2 & \textbf{75.00} & 50.00 & \textbf{62.50} \\" in lines
    assert r"b\_2 $-$ a & +25.00 & $-$25.00 & +0.00 \\" in lines
    rows = values_csv(table, {"gsm8k": "exact_match"}, {"gsm8k": 5}).splitlines()
    assert rows[1] == "a,gsm8k,exact_match,5,4,50.000000,28.867513,,,"
    assert rows[4] == "b_2,gsm8k,exact_match,5,4,75.000000,25.000000,25.000000,25.000000,"


def test_marks() -> None:
    """More than one standard error, more than two, and exactly one, which has no mark."""
    always, never = [1.0] * 8, [0.0] * 8
    for better, mark in ((1, ""), (2, "*"), (4, "**"), (8, "**"), (0, "")):
        table = compare({"a": {"piqa": never}, "b": {"piqa": always[:better] + never[better:]}})
        value = table.differences["b"]["piqa"]
        share = better / 8
        assert value.error == pytest.approx(100 * math.sqrt(share * (1 - share) / 7))
        assert value.mark == mark, better
        assert f"+{100 * share:.2f}{mark} |" in markdown(table)
    assert mean_of([1.0]).error is None and mean_of([1.0]).mark == ""
    with pytest.raises(ValueError, match="zip"):
        compare({"a": {"piqa": [1.0]}, "b": {"piqa": [1.0, 0.0]}})
