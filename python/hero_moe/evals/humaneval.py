"""HumanEval's metric: does the completed program pass the tests of its problem (Chen et al. 2021)?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hero_moe.evals.sandbox import PASSED, run_program


def run(answers: Sequence[Sequence[str]], docs: Sequence[dict[str, Any]]) -> list[str]:
    """lm_eval's filter: what `run_program` says of each problem's first completion; one on each core."""
    programs = [tested(doc, answer[0]) for answer, doc in zip(answers, docs, strict=True)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(run_program, programs))


def tested(doc: dict[str, Any], completion: str) -> str:
    """The whole program: the prompt, its completion, and a call of the tests."""
    return f"{doc['prompt']}{completion}\n{doc['test']}\ncheck({doc['entry_point']})\n"


def score(doc: dict[str, Any], verdicts: Sequence[str]) -> dict[str, float]:
    """lm_eval's process_results. With one completion a problem, pass@1 is the share of those that pass."""
    return {"pass@1": float(verdicts[0] == PASSED)}
