"""What the runs of a report were trained on, and why they may not be comparable."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hero_moe.report import page
from hero_moe.report.comparison import differing_keys
from hero_moe.report.run_files import Run
from hero_moe.report.sections import NONE, Comparison, span
from hero_moe.report.starts import Start

# Options of [train] and [optim] that do not change what a run learns, up to rounding and chance.
_NEUTRAL = {
    *(f"train.{name}" for name in ("seed", "device", "threads", "cuda_graph", "recompute")),
    *(f"train.{name}" for name in ("routing_every", "norms_every", "log_every")),
    "optim.offload_folder",
}


def warning(shown: Comparison) -> str:
    """One sentence with the reasons why the runs are not comparable; empty if there are none."""
    runs = shown.runs
    reasons = [
        _groups(runs, "data", lambda start: start.data_hash, lambda start: " ".join(start.data)),
        _groups(runs, "tokenizers", lambda start: start.tokenizer, lambda start: _short(start.tokenizer)),
    ]
    tokens = [int(run.metrics.tokens[-1]) for run in runs]
    if len(set(tokens)) > 1:
        reasons.append(f"different numbers of training tokens ({span(tokens, 'token')})")
    if keys := [key for key in differing_keys(runs) if _is_training_option(key)]:
        reasons.append(f"different training options ({', '.join(keys)})")
    for run in runs if len(runs) > 1 else []:
        if changed := [key for key in _changed_options(run) if _is_training_option(key)]:
            reasons.append(f"{', '.join(changed)} changed during {run.name}")
        if any(start.changed_data for start in run.starts):
            reasons.append(f"the data changed during {run.name}")
    found = "; ".join(reason for reason in reasons if reason)
    return f"These runs are not comparable: {found}." if found else ""


def data_section(shown: Comparison) -> str:
    """Data, tokenizer, resumes and changed options of every run; empty if no run recorded them."""
    if not any(run.starts for run in shown.runs):
        return ""
    rows = [[page.cell(run.name), *map(page.cell, _row(run))] for run in shown.runs]
    header: list[str | tuple[str, str]] = [
        "run",
        ("data", "hash"),
        ("tokenizer", "hash"),
        "resumed after step",
        "changes",
    ]
    if any(run.parent for run in shown.runs):
        header.append(("parent", "of a branch"))
        for row, run in zip(rows, shown.runs):
            row.append(page.cell(_parent(run, shown.runs)))
    note = "Equal hashes mean equal token files and shares, or equal tokenizers, whatever their paths."
    return page.section("Data and resumes", page.table(header, rows, "config"), page.paragraph(note))


def _row(run: Run) -> list[str]:
    if not run.starts:
        return ["not recorded", "not recorded", NONE, NONE]
    last = run.starts[-1]
    first = run.parent.step if run.parent else 0
    resumes = ", ".join(f"{start.step:,}" for start in run.starts if start.step > first)
    changes = [f"from step {start.step + 1:,}: {text}" for start in run.starts if (text := _changes(start))]
    data = f"{' '.join(last.data)} ({_short(last.data_hash)})"
    return [data, _short(last.tokenizer), resumes or NONE, "; ".join(changes) or NONE]


def _parent(run: Run, runs: list[Run]) -> str:
    """`stable after step 400`, with the parent's path if it is not on the page; a dash for other runs."""
    if run.parent is None:
        return NONE
    folder = run.parent.run
    name = next((other.name for other in runs if other.path.resolve() == folder.resolve()), str(folder))
    return f"{name} after step {run.parent.step:,}"


def _changes(start: Start) -> str:
    options = [f"{key} {_text(before)} → {_text(after)}" for key, (before, after) in start.options.items()]
    files = [*start.changed_data, *start.changed_validation]
    return ", ".join([*options, *(f"{Path(file).name} replaced" for file in files)])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _short(digest: str) -> str:
    return digest[:12] or "none"


def _is_training_option(key: str) -> bool:
    return key.startswith(("optim.", "train.")) and key not in _NEUTRAL


def _changed_options(run: Run) -> list[str]:
    return list(dict.fromkeys(key for start in run.starts for key in start.options))


def _groups(
    runs: list[Run], what: str, identity: Callable[[Start], str], text: Callable[[Start], str]
) -> str:
    """`different data (a, b: x; c: y)` if the runs that recorded it differ, else empty."""
    names: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    for run in runs:
        if run.starts:
            key = identity(run.starts[-1])
            names.setdefault(key, []).append(run.name)
            texts.setdefault(key, text(run.starts[-1]))
    if len(names) < 2:
        return ""
    listed = "; ".join(f"{', '.join(members)}: {texts[key]}" for key, members in names.items())
    return f"different {what} ({listed})"
