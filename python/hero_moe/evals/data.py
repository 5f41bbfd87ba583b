"""Reads and checks the benchmark files KEY.jsonl and KEY_fewshot.jsonl in one folder."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hero_moe.evals.benchmarks import Benchmark
from hero_moe.json_text import parse_json

Row = dict[str, Any]

_TEXT_FIELDS = {
    "choice": ("query",),
    "answer": ("query", "answer"),
    "text": ("text",),
    "program": ("task_id", "prompt", "entry_point", "test"),
}


@dataclass(frozen=True)
class Data:
    """The rows of a benchmark, in the order of its files."""

    rows: list[Row]
    fewshot: list[Row]
    digest: str
    """SHA-256 of both files."""


def read(folder: str | Path, benchmark: Benchmark) -> Data:
    """Reads the files of a benchmark.

    Raises:
        ValueError: for a missing file, and for the first row that does not follow docs/benchmarks.md, with
            the file, line, field, value found and value expected.
    """
    paths = [Path(folder) / f"{benchmark.key}.jsonl"]
    if benchmark.has_fewshot:
        paths.append(Path(folder) / f"{benchmark.key}_fewshot.jsonl")
    for path in paths:
        if not path.is_file():
            raise ValueError(f"{path}: no such file, expected the rows of {benchmark.title}")
    return _read(benchmark, *((path, path.stat().st_size, path.stat().st_mtime_ns) for path in paths))


@cache
def _read(benchmark: Benchmark, *files: tuple[Path, int, int]) -> Data:
    digest = hashlib.sha256()
    found: list[list[Row]] = []
    for number, (path, _, _) in enumerate(files):
        content = path.read_bytes()
        digest.update(hashlib.sha256(content).digest())
        found.append(list(_rows(path, content, benchmark, fewshot=number == 1)))
    return Data(found[0], found[1] if len(found) > 1 else [], digest.hexdigest())


def _rows(path: Path, content: bytes, benchmark: Benchmark, fewshot: bool) -> Iterable[Row]:
    lines = content.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if not lines:
        raise ValueError(f"{path}: found an empty file, expected one row per line")
    for number, line in enumerate(lines, 1):
        try:
            row = parse_json(line.decode("utf-8"))
            if not isinstance(row, dict):
                raise ValueError(f"found {_short(row)}, expected a JSON object")
            _check(row, benchmark, fewshot)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
        yield row


def _check(row: Row, benchmark: Benchmark, fewshot: bool) -> None:
    names = list(_TEXT_FIELDS[benchmark.rows])
    if fewshot and benchmark.rows == "answer":
        names.append("solution")
    if benchmark.subject and not (fewshot and benchmark.shared_fewshot):
        names.append(benchmark.subject)
    for name in names:
        _text(name, row.get(name), name in row)
    if benchmark.rows == "text" and not row["text"].rpartition(" ")[2].strip():
        raise ValueError(f"text: found {_short(row['text'])}, expected a text that ends with a word")
    if benchmark.rows != "choice":
        return
    choices, gold = row.get("choices"), row.get("gold")
    low, high = benchmark.choices
    wanted = f"{low}" if low == high else f"{low} to {high}"
    if not isinstance(choices, list) or not low <= len(choices) <= high:
        raise ValueError(f"choices: found {_short(choices)}, expected a list of {wanted} texts")
    for position, choice in enumerate(choices):
        _text(f"choices[{position}]", choice)
    if type(gold) is not int or not 0 <= gold < len(choices):
        raise ValueError(f"gold: found {_short(gold)}, expected a number from 0 to {len(choices) - 1}")


def _text(name: str, value: Any, present: bool = True) -> None:
    if not present:
        raise ValueError(f"{name}: found nothing, expected a non-empty text")
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name}: found {_short(value)}, expected a non-empty text")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_subjects(
    folder: str | Path, benchmark: Benchmark, data: Data, known: list[str], shots: int
) -> None:
    """Checks that every lm_eval subject has rows, none is unknown, and all have enough few-shot rows."""
    if benchmark.subject is None:
        counts = {benchmark.key: len(data.fewshot)}
    else:
        _check_names(Path(folder) / f"{benchmark.key}.jsonl", benchmark.subject, data.rows, known)
        counts = dict.fromkeys(known, len(data.fewshot))
        if not benchmark.shared_fewshot:
            path = Path(folder) / f"{benchmark.key}_fewshot.jsonl"
            counts = Counter(row[benchmark.subject] for row in data.fewshot)
            if shots:
                _check_names(path, benchmark.subject, data.fewshot, known)
    for name, count in counts.items():
        if count < shots:
            found = f"found {count} rows of {name}, expected at least {shots}, one for each shot"
            raise ValueError(f"{Path(folder) / benchmark.key}_fewshot.jsonl: {found}")


def _check_names(path: Path, field: str, rows: list[Row], known: list[str]) -> None:
    for number, row in enumerate(rows, 1):
        if row[field] not in known:
            expected = f"one of lm_eval's {len(known)}, such as {known[0]}"
            raise ValueError(f"{path}:{number}: {field}: found {_short(row[field])}, expected {expected}")
    missing = sorted(set(known) - {row[field] for row in rows})
    if missing:
        found = f"found rows of {len(known) - len(missing)} of {len(known)}"
        raise ValueError(f"{path}: {field}: {found}, expected all; first missing: {missing[0]}")


def subset(rows: list[Row], limit: int | None) -> list[Row]:
    """`limit` evenly spaced rows: rows floor((i + 1/2) n / limit) of n, so subjects of a sorted file are
    represented proportionally. All rows if there are no more than `limit`."""
    if limit is None or limit >= len(rows):
        return rows
    return [rows[(2 * i + 1) * len(rows) // (2 * limit)] for i in range(limit)]
