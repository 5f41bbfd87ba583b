"""Models without weights: one with all answers, one with uniform probabilities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from hero_moe.evals.data import subset

# lm_eval's tasks of each benchmark, by name or by the prefix of the subject.
TASKS = {
    "gsm8k": "gsm8k",
    "mathqa": "mathqa",
    "arc_challenge": "arc_c",
    "arc_zh": "arc_c_zh",
    "arc_easy": "arc_e",
    "hellaswag": "hellaswag",
    "paper13_humaneval": "humaneval",
    "lambada_openai": "lambada",
    "piqa": "piqa",
}
SUBJECT_TASKS = {
    "bbh_cot_fewshot_": ("bbh", "task"),
    "minerva_math_": ("math", "subject"),
    "cmmlu_": ("cmmlu", "subject"),
    "mmlu_": ("mmlu", "subject"),
}
MATH = {
    "counting_and_prob": "Counting & Probability",
    "num_theory": "Number Theory",
    "precalc": "Precalculus",
}
LETTERS = ("mmlu", "cmmlu")


class Oracle(LM):
    """Answers from the benchmark files; rows are indexed within their subject.

    `wrong`: every n-th item of a task gets a wrong answer.
    """

    max_length, max_gen_toks = 4096, 256

    def __init__(self, folder: Path, limit: int | None = None, wrong: int | None = None) -> None:
        super().__init__()
        self.folder, self.limit, self.wrong = folder, limit, wrong
        self.asked = 0
        self._rows: dict[str, list[dict[str, Any]]] = {}

    def row(self, request: Instance) -> tuple[str, dict[str, Any]]:
        """The benchmark and the row."""
        task = request.task_name
        key, field, name = TASKS.get(task), None, None
        for prefix, (benchmark, field_name) in SUBJECT_TASKS.items():
            if key is None and task.startswith(prefix):
                key, field, name = benchmark, field_name, task.removeprefix(prefix)
        if key == "math":
            name = MATH.get(name, name.replace("_", " ").title())
        if task not in self._rows:
            with (self.folder / f"{key}.jsonl").open() as lines:
                rows = subset(list(map(json.loads, lines)), self.limit)
            self._rows[task] = [row for row in rows if field is None or row[field] == name]
        return key, self._rows[task][request.doc_id]

    def right(self, request: Instance) -> bool:
        self.asked += 1
        return self.wrong is None or request.doc_id % self.wrong != 0

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        return [self._scored(request) for request in requests]

    def _scored(self, request: Instance) -> tuple[float, bool]:
        key, row = self.row(request)
        context, continuation = request.args
        right = self.right(request)
        if key == "lambada":
            assert context + continuation == row["text"]
            return (-1.0, right)
        choices = "ABCD" if key in LETTERS else row["choices"]
        if key not in ("hellaswag", "arc_c_zh"):  # lm_eval preprocesses their texts
            assert row["query"].strip() in context
            assert continuation == f" {choices[request.idx]}"
        gold = row["gold"] if right else (row["gold"] + 1) % len(row["choices"])
        return (0.0, True) if request.idx == gold else (-50.0 * len(continuation), False)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        return [self._written(request) for request in requests]

    def _written(self, request: Instance) -> str:
        key, row = self.row(request)
        if not self.right(request):
            return " I do not know."
        one_line = " ".join(row.get("answer", "").split())  # as lm_eval parses MATH answers
        text = {
            "gsm8k": lambda: f" It is so.\n#### {row['answer']}\n\n",
            "math": lambda: f" Final Answer: The final answer is ${one_line}$. I hope it is correct.",
            "bbh": lambda: f"So the answer is {row['answer']}.",
            "humaneval": lambda: row["canonical_solution"],
        }[key]()
        for stop in request.args[1]["until"]:
            text = text.split(stop)[0]
        return text

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError


class Uniform(LM):
    """Uniform probability per character; generates empty texts."""

    max_length, max_gen_toks = 4096, 256

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        return [(-float(len(request.args[1]) - 1), False) for request in requests]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        return [""] * len(requests)

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError
