"""The 13 benchmarks: models with known scores, prompts, and error messages."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

import evals_data
from evals_models import Oracle, Uniform
from hero_moe.evals import __main__ as command
from hero_moe.evals.benchmarks import BENCHMARKS, SUITE
from hero_moe.evals.data import subset
from hero_moe.evals.loading import Suite
from hero_moe.evals.models import Model, parse

pytestmark = pytest.mark.usefixtures("programs")

ROWS, PER_SUBJECT = 20, 4
SUBJECTS = {"math": 7, "bbh": 27, "mmlu": 57, "cmmlu": 67}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Benchmark files with every subject."""
    folder = tmp_path_factory.mktemp("evals")
    suite = Suite(folder)
    subjects = {key: suite.subjects(benchmark) for key, benchmark in BENCHMARKS.items()}
    assert {key: len(names) for key, names in subjects.items() if names} == SUBJECTS
    evals_data.write_all(folder, subjects, ROWS, PER_SUBJECT)
    return folder


Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command on models by name; returns its status and results.json."""

    def run(lms: dict[str, LM], *words: str, data: Path = folder) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(Model, "open", lambda self: lms[self.name])
        for name in lms:
            (tmp_path / "models" / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / "models" / name / "config.json").write_text("{}")
        paths = [str(tmp_path / "models" / name) for name in lms]
        out = tmp_path / "out"
        status = command.main(["--models", *paths, "--data-dir", str(data), "--out", str(out), *words])
        written = out / "results.json"
        return status, json.loads(written.read_text()) if written.is_file() else {}

    return run


def scores(results: dict[str, Any], name: str) -> dict[str, float]:
    return {key: value["score"] for key, value in results["models"][name]["scores"].items()}


def test_scores(run: Run, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The oracle scores 100. The uniform model scores exactly chance: lm_eval takes the first of equally
    likely choices, and the correct choice is equally often in each place."""
    wrong = Oracle(folder, wrong=3)
    status, results = run({"none": Uniform(), "all": Oracle(folder), "wrong": wrong})
    assert status == 0
    assert list(results["benchmarks"]) == list(BENCHMARKS)
    assert set(scores(results, "all").values()) == {100.0}
    chance = {
        key: 100 / (5 if key == "mathqa" else min(4, b.choices[1])) if b.rows == "choice" else 0.0
        for key, b in BENCHMARKS.items()
    }
    assert scores(results, "none") == pytest.approx(chance | {"average": 220 / 13}, abs=1e-9)
    assert "| all − none " in capsys.readouterr().out
    sizes = {k: PER_SUBJECT * subjects for k, subjects in SUBJECTS.items()}
    counts = {k: b["items"] for k, b in results["benchmarks"].items()}
    assert counts == dict.fromkeys(BENCHMARKS, ROWS) | sizes

    # `paper13` through lm_eval's own loading and groups gives the same scores.
    tasks = Path(lm_eval.__file__).parent / "tasks"
    paths = [*sorted({tasks / name for b in BENCHMARKS.values() for name in b.folders}), SUITE]
    manager = TaskManager(include_path=paths, include_defaults=False, metadata={"data_dir": str(folder)})
    found = lm_eval.simple_evaluate(
        wrong, tasks=["paper13"], task_manager=manager, bootstrap_iters=0, confirm_run_unsafe_code=True
    )
    suite, ours = Suite(folder), scores(results, "wrong")
    for key, benchmark in BENCHMARKS.items():
        theirs = found["results"][suite.name(benchmark)][benchmark.metric]
        assert 0 < theirs < 1 and ours[key] == pytest.approx(100 * theirs, abs=1e-9), key
        assert results["models"]["wrong"]["all_metrics"][key][benchmark.metric] == pytest.approx(theirs)


def test_limit(run: Run, folder: Path) -> None:
    """Evenly spaced rows: the same for both models, proportional over subjects."""
    keys = ["mathqa", "math", "mmlu", "lambada"]
    lms = {"all": Oracle(folder, 14), "same": Oracle(folder, 14)}
    status, results = run(lms, "--limit", "14", "--tasks", *keys)
    assert status == 0
    assert set(scores(results, "same").values()) == {100.0}
    assert {b["items"] for b in results["benchmarks"].values()} == {14}
    rows = evals_data.read(folder / "math.jsonl")
    subjects = [row["subject"] for row in subset(rows, 14)]
    assert sorted(map(subjects.count, set(subjects))) == [2] * 7
    assert subset(list(range(10)), 4) == [1, 3, 6, 8] and subset([1, 2], 5) == [1, 2]


def prompt(folder: Path, key: str, task: str | None = None) -> tuple[str, list[str]]:
    """The prompt of the first item, and its continuations or stop strings."""
    suite = Suite(folder)
    tasks = suite.load(BENCHMARKS[key], suite.shots(BENCHMARKS[key]))["tasks"]
    first = tasks[task or next(iter(tasks))]
    first.build_all_requests(limit=1)
    requests = [request.args for request in first.instances]
    if isinstance(requests[0][1], dict):
        return requests[0][0], requests[0][1]["until"]
    assert len({context for context, _ in requests}) == 1
    return requests[0][0], [continuation for _, continuation in requests]


def test_prompts(folder: Path) -> None:
    """Prompts match exactly, with the examples in file order."""
    shown = [
        f"Question: How much is {n} and GSM8K?\n"
        f"Answer: It is {n} and 7, so $\\boxed{{{n + 7}}}$.\n#### {n + 7}\n\n"
        for n in range(900, 905)
    ]
    text, until = prompt(folder, "gsm8k")
    assert text == "".join(shown) + "Question: How much is 0 and GSM8K?\nAnswer:" and "Question:" in until
    shown = [
        f"Problem:\nHow much is {n} and MATH?\n\nSolution: It is {n} and 7, so $\\boxed{{{n + 7}}}$.\n"
        f"Final Answer: The final answer is ${n + 7}$. I hope it is correct.\n\n"
        for n in range(900, 904)
    ]
    text, until = prompt(folder, "math", "minerva_math_precalc")
    assert text == "".join(shown) + f"Problem:\nHow much is {6 * PER_SUBJECT} and MATH?\n\nSolution:"
    assert until == ["Problem:"]
    text, until = prompt(folder, "bbh", "bbh_cot_fewshot_snarks")
    assert text.startswith("Determine which of two sentences is sarcastic.\n\n")
    assert text.count("\nA: Let's think step by step.\nIt is 90") == 3
    assert text.endswith("and BBH?\nA: Let's think step by step.\n") and until == ["</s>", "Q:", "\n\n"]
    question = "\nA. a{0}\nB. b{0}\nC. c{0}\nD. d{0}\n"
    english = "The following are multiple choice questions (with answers) about anatomy."
    chinese = "以下是关于解剖学的单项选择题，请直接给出正确答案的选项。"
    for key, title, head, ask in (
        ("mmlu", "MMLU", english, "Answer:"),
        ("cmmlu", "CMMLU", chinese, "答案："),
    ):
        texts = [
            f"What is {title} {n}?{question.format(f'{n:03d}')}{ask}"
            for n in (900, 901, 902, 903, 904, PER_SUBJECT)
        ]
        shown = [f"{text} {'ABCD'[n % 4]}\n\n" for n, text in enumerate(texts[:5])]
        text, choices = prompt(folder, key, f"{key}_anatomy")
        assert text == f"{head}\n\n" + "".join(shown) + texts[5]
        assert choices == [" A", " B", " C", " D"]
    text, choices = prompt(folder, "mathqa")
    assert text == "Question: What is MathQA 0?\nAnswer:"
    assert choices == [" a000", " b000", " c000", " d000", " e000"]
    for key in ("arc_c", "arc_c_zh", "arc_e", "piqa"):
        text, choices = prompt(folder, key)
        assert text == f"Question: What is {BENCHMARKS[key].title} 0?\nAnswer:"
        assert choices == [" a000", " b000", " c000", " d000"][: 2 if key == "piqa" else 4]
    assert prompt(folder, "hellaswag")[0] == "What is HellaSwag 0?"
    ended = ("Once there was a text of 0 words that ended with", [" w0"])
    assert prompt(folder, "lambada") == ended
    assert prompt(folder, "humaneval")[0] == evals_data.program(0)["prompt"]


Change = Callable[[list[dict[str, Any]]], None]


def put(number: int, **values: Any) -> Change:
    return lambda rows: rows[number].update(values)


BAD_ROWS: dict[str, tuple[str, Change, str]] = {
    "no field": ("gsm8k", lambda rows: rows[2].pop("answer"), "gsm8k.jsonl:3: answer: found nothing, expected a non-empty text"),
    "empty text": ("arc_c", put(0, query=" "), 'arc_c.jsonl:1: query: found " ", expected a non-empty text'),
    "number": ("lambada", put(4, text=7), "lambada.jsonl:5: text: found 7, expected a non-empty text"),
    "no word": ("lambada", put(4, text="a b "), 'lambada.jsonl:5: text: found "a b ", expected a text that ends'),
    "few choices": ("hellaswag", put(1, choices=["a"]), "hellaswag.jsonl:2: choices: found .*, expected a list of 4"),
    "no list": ("piqa", put(1, choices="ab"), 'piqa.jsonl:2: choices: found "ab", expected a list of 2 texts'),
    "empty choice": ("mathqa", put(1, choices=["a", "b", "", "d", "e"]), r'mathqa.jsonl:2: choices\[2\]: found "",'),
    "gold": ("arc_e", put(3, gold=4), "arc_e.jsonl:4: gold: found 4, expected a number from 0 to 3"),
    "gold is true": ("arc_e", put(3, gold=True), "arc_e.jsonl:4: gold: found true, expected a number"),
    "example": ("math_fewshot", put(3, solution=None), "math_fewshot.jsonl:4: solution: found null, expected a non-empty text"),
    "few examples": ("gsm8k_fewshot", lambda rows: rows.pop(), "gsm8k_fewshot.jsonl: found 4 rows of gsm8k, expected"),
    "few of one": ("mmlu_fewshot", lambda rows: rows.pop(), "mmlu_fewshot.jsonl: found 4 rows of world_religions, exp"),
    "unknown subject": ("bbh", put(0, task="sums"), 'bbh.jsonl:1: task: found "sums", expected one of lm_eval.s 27'),
    "absent subject": ("cmmlu", lambda rows: rows.__delitem__(slice(0, 4)), "found rows of 66 of 67, .* agronomy"),
    "nothing": ("humaneval", lambda rows: rows.clear(), "humaneval.jsonl: found an empty file"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "change", "message"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_rows(
    run: Run,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    change: Change,
    message: str,
) -> None:
    """Exits with status 2 and one line, before a model is loaded or a file written."""
    key, data = name.removesuffix("_fewshot"), tmp_path / "data"
    data.mkdir()
    for path in folder.glob(f"{key}*.jsonl"):
        shutil.copy(path, data)
    rows = evals_data.read(data / f"{name}.jsonl")
    change(rows)
    evals_data.write(data / f"{name}.jsonl", rows)
    assert run({"never": Uniform()}, "--tasks", key, data=data) == (2, {})
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and re.search(message, error), error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a b"}\n{"text": "a', "lambada.jsonl:2: Unterminated string"),
        (b'{"text": "a b"}\n[1]\n', r"lambada.jsonl:2: found \[1\], expected a JSON object"),
        (b'{"text": "a \xff"}\n', "lambada.jsonl:1: 'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_bad_lines(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    (tmp_path / "lambada.jsonl").write_bytes(content)
    assert run({"never": Uniform()}, "--tasks", "lambada", data=tmp_path) == (2, {})
    assert re.search(message, capsys.readouterr().err)


BAD_WORDS: dict[str, tuple[list[str], str]] = {
    "task": (["--tasks", "pipa"], "--tasks: found pipa, expected some of gsm8k, mathqa"),
    "limit": (["--limit", "0"], "--limit: found 0, expected at least 1"),
    "no number": (["--limit", "ten"], "--limit: invalid int value: 'ten'"),
    "shots": (["--shots", "gsm8k"], "--shots: found gsm8k, expected KEY=N"),
    "many shots": (["--shots", "gsm8k=6"], "gsm8k_fewshot.jsonl: found 5 rows of gsm8k, expected at least 6"),
    "shots of none": (["--shots", "lambada=1"], "--shots: found lambada=1, expected 0"),
    "batch": (["--batch-size", "big"], "--batch-size: found big, expected at least 1, or auto"),
    "backend": (["--backend", "vllm"], "invalid choice: 'vllm'"),
    "word": (["--modles", "x"], "unrecognized arguments: --modles x"),
}


@pytest.mark.parametrize(("words", "message"), BAD_WORDS.values(), ids=BAD_WORDS)
def test_bad_words(run: Run, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    try:
        status, _ = run({"never": Uniform()}, *words)
    except SystemExit as left:
        status = left.code
    error = capsys.readouterr().err
    assert status == 2 and error.count("\n") == 1 and message in error


def test_bad_models(tmp_path: Path) -> None:
    for path in ("a", "b/a", "c"):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "config.json").write_text("{}")
    a, other, empty = str(tmp_path / "a"), str(tmp_path / "b" / "a"), str(tmp_path / "b")
    with pytest.raises(ValueError, match="found a twice"):
        parse([a, other])
    assert [model.name for model in parse([a, f"b={other}"])] == ["a", "b"]
    with pytest.raises(ValueError, match="found the name 'x/y'"):
        parse([f"x/y={a}"])
    with pytest.raises(ValueError, match="nowhere: found no such folder"):
        parse(["nowhere"])
    with pytest.raises(ValueError, match="found neither config.json nor a checkpoint"):
        parse([empty])
    for step in (9, 10):
        folder = tmp_path / "run" / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    assert parse([str(tmp_path / "run")])[0].folder.name == "step-00000010"
