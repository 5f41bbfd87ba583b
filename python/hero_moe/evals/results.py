"""One model on one benchmark: evaluated by lm_eval, kept in a file with every item's score."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.api.model import LM

from hero_moe.evals.answers import RecordedLM
from hero_moe.evals.benchmarks import Benchmark
from hero_moe.evals.loading import Suite


@dataclass(frozen=True)
class Result:
    """What came out. Items are in the order of the tasks and their documents, the same for every model."""

    metrics: dict[str, float]
    """All of lm_eval's for this benchmark, over all subjects, each 0 to 1."""
    items: list[dict[str, Any]]
    """Of each: `task`, `doc`, `score`, `target`, `response` (log-probabilities of the choices, or a text)."""

    @property
    def scores(self) -> list[float]:
        return [item["score"] for item in self.items]


def evaluate(
    suite: Suite,
    benchmark: Benchmark,
    shots: int,
    open_model: Callable[[], LM],
    path: Path,
    header: dict[str, Any],
) -> Result:
    """The result of a benchmark, from the file `path` if it is finished there, else by asking the model.

    Args:
        header: what the result depends on; the file's first line.
    """
    kept = read(path)
    if kept:
        return kept
    answers = path.with_suffix(".answers.jsonl")
    label = f"{path.parent.name} {benchmark.title}"
    model = RecordedLM(open_model, answers, header, label)
    tasks = suite.load(benchmark, shots)
    found = lm_eval.evaluate(model, tasks, bootstrap_iters=0, confirm_run_unsafe_code=True)
    name, (metric, wanted) = suite.name(benchmark), benchmark.metric.split(",")
    numbers = {k: float(v) for k, v in found["results"][name].items() if "," in k and "_stderr" not in k}
    items = [
        {"task": task, "doc": sample["doc_id"], "score": float(sample[metric]), **_written(sample)}
        for task, samples in found["samples"].items()
        for sample in samples
        if sample["filter"] == wanted
    ]
    temporary = path.with_suffix(".new")
    with temporary.open("w", encoding="utf-8") as out:
        for line in (header | {"metrics": numbers}, *items):
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
        out.flush()
        os.fsync(out.fileno())
    temporary.rename(path)
    answers.unlink()
    return Result(numbers, items)


def _written(sample: dict[str, Any]) -> dict[str, Any]:
    """The response as the model gave it; of a choice or a word the log-probabilities."""
    responses = [response[0] for response in sample["resps"]]
    if isinstance(responses[0], str):
        return {"target": sample["target"], "response": responses[0], "read": sample["filtered_resps"][0]}
    return {"target": sample["target"], "response": [logprob for logprob, _ in responses]}


def read(path: Path) -> Result | None:
    """A finished result; None where there is none."""
    if not path.is_file():
        return None
    with path.open(encoding="utf-8") as lines:
        header, *items = map(json.loads, lines)
    return Result(header["metrics"], items)


def check_header(path: Path, header: dict[str, Any]) -> None:
    """That the files of a result, finished or not, were made as asked for now. ValueError otherwise."""
    for file in (path, path.with_suffix(".answers.jsonl")):
        if not file.is_file():
            continue
        with file.open("rb") as lines:
            first = lines.readline()
        if not first.endswith(b"\n"):
            continue  # stopped before its first line was written
        found = json.loads(first)
        for name, value in header.items():
            if found.get(name) != value:
                was, now = _short(found.get(name)), _short(value)
                hint = "expected the same; another --out keeps both, --restart starts again"
                raise ValueError(f"{file}: {name}: found results of {was}, asked for {now}; {hint}")


def _short(value: Any) -> str:
    return f"{value[:12]}..." if isinstance(value, str) and len(value) == 64 else json.dumps(value)
