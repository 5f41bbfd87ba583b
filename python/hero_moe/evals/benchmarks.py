"""Names, row formats and lm_eval metrics of the benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SUITE = Path(__file__).parent / "suite"
"""For lm_eval's --include_path."""

MATH_SUBJECTS = {
    "algebra": "Algebra",
    "counting_and_probability": "Counting & Probability",
    "geometry": "Geometry",
    "intermediate_algebra": "Intermediate Algebra",
    "number_theory": "Number Theory",
    "prealgebra": "Prealgebra",
    "precalculus": "Precalculus",
}
"""lm_eval's subject names -> those of the dataset."""


@dataclass(frozen=True)
class Benchmark:
    """One column of the table."""

    key: str
    title: str
    rows: str
    """Kind of its rows: "choice", "answer", "text" or "program"."""
    folders: tuple[str, ...]
    """Folders of lm_eval tasks that contain its definition."""
    metric: str
    """Key in lm_eval's results, with its filter."""
    choices: tuple[int, int] = (0, 0)
    """Minimum and maximum number per row."""
    subject: str | None = None
    """The field with the subject or subtask."""
    shared_fewshot: bool = False
    """Whether all subjects share the few-shot rows, which then have no subject field."""

    @property
    def has_fewshot(self) -> bool:
        return self.rows in ("choice", "answer")


_ALL = (
    Benchmark("gsm8k", "GSM8K", "answer", ("gsm8k",), "exact_match,strict-match"),
    Benchmark("mathqa", "MathQA", "choice", ("mathqa",), "acc,none", (5, 5)),
    Benchmark(
        "math", "MATH", "answer", ("minerva_math", "benchmarks"), "exact_match,none", (0, 0), "subject", True
    ),
    Benchmark("arc_c", "ARC-C", "choice", ("arc",), "acc_norm,none", (2, 5)),
    Benchmark("arc_c_zh", "ARC-C-ZH", "choice", ("okapi/arc_multilingual",), "acc_norm,none", (2, 5)),
    Benchmark("arc_e", "ARC-E", "choice", ("arc",), "acc,none", (2, 5)),
    Benchmark("hellaswag", "HellaSwag", "choice", ("hellaswag",), "acc_norm,none", (4, 4)),
    Benchmark("bbh", "BBH", "answer", ("bbh/cot_fewshot",), "exact_match,get-answer", (0, 0), "task"),
    Benchmark("mmlu", "MMLU", "choice", ("mmlu/default",), "acc,none", (4, 4), "subject"),
    Benchmark("cmmlu", "CMMLU", "choice", ("cmmlu",), "acc,none", (4, 4), "subject"),
    Benchmark("humaneval", "HumanEval", "program", (), "pass@1,sandbox"),
    Benchmark("lambada", "LAMBADA", "text", ("lambada",), "acc,none"),
    Benchmark("piqa", "PIQA", "choice", ("piqa",), "acc,none", (2, 2)),
)
BENCHMARKS = {benchmark.key: benchmark for benchmark in _ALL}
"""In the order of the paper's columns; the paper spells PIQA as PIPA."""
