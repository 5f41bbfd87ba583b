"""Evaluates one model on one benchmark with lm_eval and saves every item's score."""

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
from hero_moe.json_text import parse_json


@dataclass(frozen=True)
class Result:
    """Metrics and items. Items are in task and document order, the same for every model."""

    metrics: dict[str, float]
    """All lm_eval metrics of this benchmark over all subjects, each from 0 to 1."""
    items: list[dict[str, Any]]
    """Each has `task`, `doc`, `score`, `target`, `response` (log-probabilities of the choices, or a text)."""

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
    """The result of a benchmark: read from the file `path` if it is complete, else computed.

    Args:
        header: the settings that the result depends on; the file's first line.
    """
    saved = read(path)
    if saved:
        return saved
    answers = path.with_suffix(".answers.jsonl")
    label = f"{path.parent.name} {benchmark.title}"
    model = RecordedLM(open_model, answers, header, label)
    tasks = suite.load(benchmark, shots)
    found = lm_eval.evaluate(model, tasks, bootstrap_iters=0, confirm_run_unsafe_code=True)
    name, (metric, wanted) = suite.name(benchmark), benchmark.metric.split(",")
    numbers = {k: float(v) for k, v in found["results"][name].items() if "," in k and "_stderr" not in k}
    items = [
        {"task": task, "doc": sample["doc_id"], "score": float(sample[metric]), **_response(sample)}
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


def _response(sample: dict[str, Any]) -> dict[str, Any]:
    """The model's response; log-probabilities for a choice or a word."""
    responses = [response[0] for response in sample["resps"]]
    if isinstance(responses[0], str):
        return {"target": sample["target"], "response": responses[0], "read": sample["filtered_resps"][0]}
    return {"target": sample["target"], "response": [logprob for logprob, _ in responses]}


def read(path: Path) -> Result | None:
    """A finished result; None if there is none."""
    if not path.is_file():
        return None
    try:
        with path.open(encoding="utf-8") as lines:
            header, *items = map(parse_json, lines)
        return Result(header["metrics"], items)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: invalid ({error}), expected results; --restart starts over") from error


def check_header(path: Path, header: dict[str, Any]) -> None:
    """Raises ValueError if the files of a result, finished or not, have different settings."""
    for file in (path, path.with_suffix(".answers.jsonl")):
        if not file.is_file():
            continue
        with file.open("rb") as lines:
            first = lines.readline()
        if not first.endswith(b"\n"):
            continue  # interrupted before the first line was written
        try:
            found = parse_json(first)
        except ValueError as error:
            raise ValueError(f"{file}:1: invalid JSON ({error}); --restart starts over") from error
        if not isinstance(found, dict):
            raise ValueError(
                f"{file}:1: found {type(found).__name__}, expected an object; --restart starts over"
            )
        for name, value in header.items():
            if found.get(name) != value:
                was, now = _short(found.get(name)), _short(value)
                hint = "choose another --out to keep both; --restart starts over"
                raise ValueError(f"{file}: {name}: found results of {was}, expected {now}; {hint}")


def _short(value: Any) -> str:
    return f"{value[:12]}..." if isinstance(value, str) and len(value) == 64 else json.dumps(value)
