"""Evaluates models on benchmarks: checks all inputs, evaluates each model, then writes the tables."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from functools import lru_cache
from pathlib import Path
from typing import Any

from hero_moe.evals import models, results
from hero_moe.evals.benchmarks import BENCHMARKS, Benchmark
from hero_moe.evals.data import check_subjects, read
from hero_moe.evals.loading import Suite, definitions
from hero_moe.evals.sandbox import UNSAFE_VARIABLE, check_sandbox
from hero_moe.evals.table import Row, Table, compare, latex, markdown, values_csv


def compare_models(options: Namespace) -> str:
    """Runs the missing evaluations and writes the tables to `options.out`.

    Args:
        options: of `python -m hero_moe.evals`.

    Returns:
        The table, as Markdown.

    Raises:
        ValueError: for invalid options, data, models or earlier results, before a model is loaded or a file
            is written.
    """
    if options.limit is not None and options.limit < 1:
        raise ValueError(f"--limit: found {options.limit}, expected at least 1")
    chosen = _benchmarks(options.tasks)
    settings = {"backend": options.backend, "dtype": options.dtype, "device": options.device}
    asked = models.parse(options.models, **settings, batch_size=_batch_size(options.batch_size))
    suite = Suite(options.data_dir, options.limit)
    shots = _shots(options.shots, suite, chosen)
    if options.unsafe_code_without_sandbox:
        os.environ[UNSAFE_VARIABLE] = "1"
    headers: dict[tuple[str, str], dict[str, Any]] = {}
    made_with = definitions()
    for benchmark in chosen:
        data = read(options.data_dir, benchmark)
        check_subjects(options.data_dir, benchmark, data, suite.subjects(benchmark), shots[benchmark.key])
        if benchmark.rows == "program":
            check_sandbox()
        for model in asked:
            headers[model.name, benchmark.key] = {
                "benchmark": benchmark.key,
                "model": model.identity(),
                "data": data.digest,
                "limit": options.limit,
                "shots": shots[benchmark.key],
                **settings,
                "definitions": made_with,
            }
    out = Path(options.out)
    for (name, key), header in headers.items():
        path = out / name / f"{key}.jsonl"
        if options.restart:
            path.unlink(missing_ok=True)
            path.with_suffix(".answers.jsonl").unlink(missing_ok=True)
        results.check_header(path, header)

    found: dict[str, dict[str, results.Result]] = {}
    for model in asked:
        (out / model.name).mkdir(parents=True, exist_ok=True)
        open_once = lru_cache(maxsize=1)(model.open)  # on the first missing answer
        found[model.name] = {
            benchmark.key: results.evaluate(
                suite,
                benchmark,
                shots[benchmark.key],
                open_once,
                out / model.name / f"{benchmark.key}.jsonl",
                headers[model.name, benchmark.key],
            )
            for benchmark in chosen
        }
    table = compare({name: {key: r.scores for key, r in row.items()} for name, row in found.items()})
    metrics = {benchmark.key: benchmark.metric for benchmark in chosen}
    summary = _summary(table, found, asked, metrics, shots, options)
    text = markdown(table) + f"\n{_legend(table, options.limit)}\n"
    (out / "table.md").write_text(text)
    (out / "table.tex").write_text(latex(table))
    (out / "table.csv").write_text(values_csv(table, metrics, shots))
    (out / "results.json").write_text(json.dumps(summary, indent=1) + "\n")
    return text


def _benchmarks(words: list[str]) -> list[Benchmark]:
    """In the order of the table."""
    for word in words:
        if word not in BENCHMARKS:
            raise ValueError(f"--tasks: found {word}, expected some of {', '.join(BENCHMARKS)}")
    return [benchmark for benchmark in BENCHMARKS.values() if benchmark.key in words]


def _batch_size(word: str | None) -> str | None:
    if word in (None, "auto") or (word.isdecimal() and int(word) >= 1):
        return word
    raise ValueError(f"--batch-size: found {word}, expected at least 1, or auto")


def _shots(words: list[str], suite: Suite, chosen: list[Benchmark]) -> dict[str, int]:
    shots = {benchmark.key: suite.shots(benchmark) for benchmark in chosen}
    for word in words:
        key, _, count = word.partition("=")
        if key not in shots or not count.isdecimal():
            raise ValueError(f"--shots: found {word}, expected KEY=N, a benchmark of --tasks and a number")
        if int(count) and not BENCHMARKS[key].has_fewshot:
            raise ValueError(f"--shots: found {word}, expected 0: {key} has no few-shot file")
        shots[key] = int(count)
    return shots


def _legend(table: Table, limit: int | None) -> str:
    lines = ["Scores in percent, with the standard error below each."]
    if table.differences:
        lines.append("Differences are paired by item; * more than one standard error, ** more than two.")
        lines.append("The errors do not include the variation between training seeds.")
    if len(table.counts) < len(BENCHMARKS):
        lines.append(f"Average of {len(table.counts)} of the {len(BENCHMARKS)} benchmarks.")
    if limit is not None:
        lines.append(f"At most {limit} items per benchmark.")
    return " ".join(lines)


def _summary(
    table: Table,
    found: dict[str, dict[str, results.Result]],
    asked: list[models.Model],
    metrics: dict[str, str],
    shots: dict[str, int],
    options: Namespace,
) -> dict[str, Any]:
    def row(values: Row) -> dict[str, Any]:
        return {key: {"score": value.mean, "error": value.error} for key, value in values.items()}

    return {
        "limit": options.limit,
        "benchmarks": {
            key: {"metric": metrics[key], "shots": shots[key], "items": count}
            for key, count in table.counts.items()
        },
        "models": {
            model.name: {
                "folder": str(model.folder),
                "scores": row(table.models[model.name]),
                "all_metrics": {key: result.metrics for key, result in found[model.name].items()},
            }
            for model in asked
        },
        "differences": {
            name: {key: v | {"mark": values[key].mark} for key, v in row(values).items()}
            for name, values in table.differences.items()
        },
    }
