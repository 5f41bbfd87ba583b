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
    """Choices of one length; the right one is each place in turn."""
    words = [f"{'abcde'[place]}{number:03d}" for place in range(choices)]
    return {"query": f"What is {benchmark.title} {number}?", "choices": words, "gold": number % choices}


def answer(benchmark: Benchmark, number: int) -> Row:
    query, text = f"How much is {number} and {benchmark.title}?", str(number + 7)
    return {"query": query, "answer": text, "solution": f"It is {number} and 7, so $\\boxed{{{text}}}$."}


def program(number: int) -> Row:
    """Adds `number`; the tests see that it does."""
    name = f"add_{number}"
    return {
        "task_id": f"Mine/{number}",
        "prompt": f'def {name}(x):\n    """Adds {number} to x."""\n',
        "canonical_solution": f"    return x + {number}\n",
        "entry_point": name,
        "test": f"def check(candidate):\n    assert candidate(2) == {number + 2}\n",
    }


def write_all(folder: Path, subjects: dict[str, list[str]], rows: int, per_subject: int) -> None:
    """Files of `rows` rows, or `per_subject` for each subject; as many few-shot rows as the prompts need."""
    for benchmark in BENCHMARKS.values():
        key = benchmark.key
        choices = 5 if key == "mathqa" else min(4, benchmark.choices[1])
        made: list[Row] = []
        shown: list[Row] = []
        for subject in subjects[key] or [""]:
            count = per_subject if subject else rows
            tag = {benchmark.subject: subject} if subject else {}
            for number in range(len(made), len(made) + count):
                if benchmark.rows == "choice":
                    made.append(choice(benchmark, number, choices) | tag)
                elif benchmark.rows == "answer":
                    made.append(answer(benchmark, number) | tag)
                elif benchmark.rows == "program":
                    made.append(program(number))
                else:
                    made.append(
                        {"text": f"Once there was a text of {number} words that ended with w{number}"}
                    )
            for number in range(900, 905):
                if benchmark.rows == "choice":
                    shown.append(choice(benchmark, number, choices) | tag)
                elif benchmark.rows == "answer":
                    shown.append(answer(benchmark, number) | ({} if benchmark.shared_fewshot else tag))
        write(folder / f"{key}.jsonl", made)
        if benchmark.has_fewshot:
            write(folder / f"{key}_fewshot.jsonl", shown[:5] if benchmark.shared_fewshot else shown)
