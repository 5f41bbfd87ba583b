"""lm_eval's tasks over local files: converts rows to documents in the format of the original dataset."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import lm_eval.utils
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks.hellaswag.utils import preprocess as plain_ending
from lm_eval.tasks.minerva_math.utils import get_unnormalized_answer, is_equiv, normalize_final_answer
from lm_eval.tasks.okapi.arc_multilingual.utils import preprocess as plain_chinese

from hero_moe.evals.benchmarks import BENCHMARKS, MATH_SUBJECTS, Benchmark
from hero_moe.evals.data import Row, read, subset
from hero_moe.evals.sandbox import check_sandbox

DATA_VARIABLE = "HERO_MOE_BENCH_DATA"
# lm_eval recompiles a template for every prompt, which takes longer than the rest of the prompt.
_templates = lm_eval.utils.env
_templates.from_string = lru_cache(maxsize=1024)(_templates.from_string)  # type: ignore[method-assign]
_NO_ANSWER = get_unnormalized_answer("")
_THINK = "Let's think step by step."  # of BBH: already in the prompt


class Documents(list[Row]):
    """The part of the `datasets.Dataset` interface that tasks use; much faster to create."""

    @property
    def features(self) -> Row:
        """The names of the fields, as keys."""
        return self[0]


class LocalTask(ConfigurableTask):
    """A task whose `dataset_path` is a benchmark's key; `dataset_name` is its subject, if any.

    The folder is `data_dir` of lm_eval's --metadata, or the environment variable HERO_MOE_BENCH_DATA; `limit`
    of the metadata selects rows of the whole file, see `subset`. ValueError for a missing folder, an invalid
    file, or if programs cannot be run.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config={name: value for name, value in config.items() if name != "class"})

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        benchmark = BENCHMARKS[self.config.dataset_path]
        metadata = self.config.metadata or {}
        folder = metadata.get("data_dir") or os.environ.get(DATA_VARIABLE)
        if not folder:
            expected = f"""--metadata '{{"data_dir": "DIR"}}' or the environment variable {DATA_VARIABLE}"""
            raise ValueError(f"{self.config.task}: found no data folder, expected {expected}")
        if benchmark.rows == "program":
            check_sandbox()
        data = read(folder, benchmark)
        rows, fewshot = subset(data.rows, metadata.get("limit")), data.fewshot
        if benchmark.subject:
            name = subject_name(benchmark, self.config.dataset_name)
            rows = [row for row in rows if row[benchmark.subject] == name]
            if not benchmark.shared_fewshot:
                fewshot = [row for row in fewshot if row[benchmark.subject] == name]
            if not rows:
                found = f"found no row with {benchmark.subject} {name}"
                raise ValueError(f"{folder}/{benchmark.key}.jsonl: {found}, expected at least one")
        document = _DOCUMENTS[benchmark.key]
        self.dataset = {
            "test": Documents(document(row, False) for row in rows),
            "fewshot": Documents(document(row, True) for row in fewshot),
        }


def subject_name(benchmark: Benchmark, dataset_name: str) -> str:
    """A subject's name in the rows; `dataset_name` is lm_eval's name."""
    return MATH_SUBJECTS[dataset_name] if benchmark.key == "math" else dataset_name


def score_math(doc: Row, responses: list[str]) -> dict[str, float]:
    """lm_eval's exact match for MATH, without its other metric. A response without an answer is wrong;
    checking this first avoids lm_eval's formula comparison, 0.3 s each."""
    answer = get_unnormalized_answer(responses[0])
    equal = answer != _NO_ANSWER and is_equiv(normalize_final_answer(answer), doc["answer"])
    return {"exact_match": float(equal)}


def _gsm8k(row: Row, shown: bool) -> Row:
    return {"question": row["query"], "answer": f"{row.get('solution', '')}\n#### {row['answer']}"}


def _mathqa(row: Row, shown: bool) -> Row:
    return {"Problem": row["query"], "choices": row["choices"], "correct": "abcde"[row["gold"]]}


def _math(row: Row, shown: bool) -> Row:
    solution = row.get("solution") or f"$\\boxed{{{row['answer']}}}$"
    if shown:
        solution += f"\nFinal Answer: The final answer is ${row['answer']}$. I hope it is correct."
    answer = normalize_final_answer(row["answer"])
    return {"problem": row["query"], "solution": solution, "answer": answer}


def _arc(row: Row, shown: bool) -> Row:
    labels = list("ABCDE"[: len(row["choices"])])
    choices = {"text": row["choices"], "label": labels}
    return {"question": row["query"], "choices": choices, "answerKey": labels[row["gold"]]}


def _arc_zh(row: Row, shown: bool) -> Row:
    query = f"Question: {plain_chinese(row['query'])}\nAnswer:"
    return {"query": query, "choices": list(map(plain_chinese, row["choices"])), "gold": row["gold"]}


def _hellaswag(row: Row, shown: bool) -> Row:
    choices = list(map(plain_ending, row["choices"]))
    return {"query": plain_ending(row["query"]), "choices": choices, "label": row["gold"]}


def _bbh(row: Row, shown: bool) -> Row:
    target = row["solution"].removeprefix(_THINK).lstrip() if shown else row["answer"]
    return {"input": row["query"], "target": target}


def _mmlu(row: Row, shown: bool) -> Row:
    return {"question": row["query"], "choices": row["choices"], "answer": row["gold"]}


def _cmmlu(row: Row, shown: bool) -> Row:
    choices = dict(zip("ABCD", row["choices"], strict=True))
    return {"Question": row["query"], **choices, "Answer": "ABCD"[row["gold"]]}


def _humaneval(row: Row, shown: bool) -> Row:
    return {name: row[name] for name in ("task_id", "prompt", "entry_point", "test")}


def _lambada(row: Row, shown: bool) -> Row:
    return {"text": row["text"]}


def _piqa(row: Row, shown: bool) -> Row:
    return {"goal": row["query"], "sol1": row["choices"][0], "sol2": row["choices"][1], "label": row["gold"]}


# (row, whether it is a few-shot example with its answer) -> document.
_DOCUMENTS: dict[str, Callable[[Row, bool], Row]] = {
    "gsm8k": _gsm8k,
    "mathqa": _mathqa,
    "math": _math,
    "arc_c": _arc,
    "arc_c_zh": _arc_zh,
    "arc_e": _arc,
    "hellaswag": _hellaswag,
    "bbh": _bbh,
    "mmlu": _mmlu,
    "cmmlu": _cmmlu,
    "humaneval": _humaneval,
    "lambada": _lambada,
    "piqa": _piqa,
}
