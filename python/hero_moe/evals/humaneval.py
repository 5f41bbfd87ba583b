"""HumanEval's metric: does the completed program pass the tests of its problem (Chen et al. 2021)?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hero_moe.evals.sandbox import PASSED, run_program


def run(answers: Sequence[Sequence[str]], docs: Sequence[dict[str, Any]]) -> list[str]:
    """lm_eval filter: the `run_program` verdict on each problem's first completion, one program per
    core of the affinity mask: a program that waits for one may exceed its time limit."""
    programs = [program_with_tests(doc, answer[0]) for answer, doc in zip(answers, docs, strict=True)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(run_program, programs))


def program_with_tests(doc: dict[str, Any], completion: str) -> str:
    """The complete program: prompt, completion, and a call of the tests."""
    return f"{doc['prompt']}{completion}\n{doc['test']}\ncheck({doc['entry_point']})\n"


def score(doc: dict[str, Any], verdicts: Sequence[str]) -> dict[str, float]:
    """lm_eval process_results. With one completion per problem, pass@1 is the fraction that passes."""
    return {"pass@1": float(verdicts[0] == PASSED)}
