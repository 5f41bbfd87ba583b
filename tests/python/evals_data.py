"""Small files for the 13 benchmarks, in the documented format."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hero_moe.evals.benchmarks import BENCHMARKS, Benchmark

Row = dict[str, Any]


def write(path: Path, rows: Iterable[Row]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def choice(benchmark: Benchmark, number: int, choices: int) -> Row:
    """Choices of equal length; the correct place rotates."""
    words = [f"{'abcde'[place]}{number:03d}" for place in range(choices)]
    return {"query": f"What is {benchmark.title} {number}?", "choices": words, "gold": number % choices}


def answer(benchmark: Benchmark, number: int) -> Row:
    query, text = f"How much is {number} and {benchmark.title}?", str(number + 7)
    return {"query": query, "answer": text, "solution": f"It is {number} and 7, so $\\boxed{{{text}}}$."}


def program(number: int) -> Row:
    """A function that adds `number`, with tests."""
    name = f"add_{number}"
    return {
        "task_id": f"Mine/{number}",
        "prompt": f'def {name}(x):\n    """Adds {number} to x."""\n',
        "canonical_solution": f"    return x + {number}\n",
        "entry_point": name,
        "test": f"def check(candidate):\n    assert candidate(2) == {number + 2}\n",
    }


def write_all(folder: Path, subjects: dict[str, list[str]], rows: int, per_subject: int) -> None:
    """Writes `rows` rows per file, or `per_subject` per subject, and enough few-shot rows for the prompts."""
    for benchmark in BENCHMARKS.values():
        key = benchmark.key
        choices = 5 if key == "mathqa" else min(4, benchmark.choices[1])
        written: list[Row] = []
        fewshot: list[Row] = []
        for subject in subjects[key] or [""]:
            count = per_subject if subject else rows
            tag = {benchmark.subject: subject} if subject else {}
            for number in range(len(written), len(written) + count):
                if benchmark.rows == "choice":
                    written.append(choice(benchmark, number, choices) | tag)
                elif benchmark.rows == "answer":
                    written.append(answer(benchmark, number) | tag)
                elif benchmark.rows == "program":
                    written.append(program(number))
                else:
                    written.append(
                        {"text": f"Once there was a text of {number} words that ended with w{number}"}
                    )
            for number in range(900, 905):
                if benchmark.rows == "choice":
                    fewshot.append(choice(benchmark, number, choices) | tag)
                elif benchmark.rows == "answer":
                    fewshot.append(answer(benchmark, number) | ({} if benchmark.shared_fewshot else tag))
        write(folder / f"{key}.jsonl", written)
        if benchmark.has_fewshot:
            write(folder / f"{key}_fewshot.jsonl", fewshot[:5] if benchmark.shared_fewshot else fewshot)
