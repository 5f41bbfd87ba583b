"""Property tests over random cases. A case is a JSON object drawn from a strategy.

    test_fixed_cases, test_fresh_cases = property_tests(check, cases())

    if __name__ == "__main__":
        reproduce(check)

`check(case, folder)` returns if the property holds, raises `Rejected` (see `expect_success`) if the program
rejects the configuration by key, and any other exception if the case fails. All cases run; failures are
reported at the end with a command that reproduces each. HERO_RANDOM_CASES sets the number of fresh cases,
HERO_RANDOM_SEED repeats the cases of an earlier run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

Case = dict[str, Any]
Check = Callable[[Case, Path], None]
Test = Callable[..., None]

ROOT = Path(__file__).parents[2]
FIXED_CASES = 12
HIGHEST_REJECTED_SHARE = 0.2


class Rejected(Exception):
    """The program rejected the configuration with a message that names one of its options."""


def expect_success(status: int, stderr: str, keys: Iterable[str]) -> None:
    """Raises Rejected for status 2 with one line that names one of the options, AssertionError for any other
    failure."""
    if status == 0:
        return
    lines = stderr.splitlines()
    named = len(lines) == 1 and any(f"{key}:" in lines[0] for key in keys)
    if status == 2 and named:
        raise Rejected(lines[0])
    raise AssertionError(f"exit status {status}: {stderr.strip()}")


@dataclass
class Tally:
    """Counts of the cases drawn so far."""

    check: Check
    drawn: int = 0
    rejected: int = 0
    wrong: list[str] = field(default_factory=list)

    def run(self, case: Case) -> None:
        self.drawn += 1
        try:
            with tempfile.TemporaryDirectory(prefix="hero-moe-case-") as folder:
                self.check(case, Path(folder))
        except Rejected:
            self.rejected += 1
        except Exception as error:
            self.wrong.append(f"{command(self.check, case)}\n    {type(error).__name__}: {error}")

    def __str__(self) -> str:
        return f"{self.drawn} drawn, {self.rejected} rejected, {len(self.wrong)} wrong"

    def assert_right(self) -> None:
        assert not self.wrong, f"{self}; from {ROOT}:\n" + "\n".join(self.wrong)
        assert self.drawn > 0
        assert self.rejected < HIGHEST_REJECTED_SHARE * self.drawn, str(self)


def command(check: Check, case: Case) -> str:
    """The command line that repeats a case from the repository's root."""
    script = Path(check.__code__.co_filename).resolve().relative_to(ROOT)
    return f"PYTHONPATH=tests/python .venv/bin/python {script} --case {shlex.quote(json.dumps(case))}"


def drawn(cases: SearchStrategy[Case], count: int, first_seed: int) -> list[Case]:
    """`count` cases from consecutive seeds."""
    out: list[Case] = []
    for batch_seed in range(first_seed, first_seed + count):
        if len(out) < count:
            out += batch(cases, batch_seed)
    return out[:count]


def batch(cases: SearchStrategy[Case], batch_seed: int) -> list[Case]:
    """Eight independent cases. Hypothesis starts with the smallest example and mutates earlier ones from the
    tenth."""
    examples: list[Case] = []

    @seed(batch_seed)
    @settings(
        max_examples=9,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def draw(case: Case) -> None:
        examples.append(case)

    draw()
    return examples[1:]


def property_tests(check: Check, cases: SearchStrategy[Case]) -> tuple[Test, Test]:
    """Two tests: a fixed set of cases, and fresh cases (`long`)."""

    def run(request: pytest.FixtureRequest, count: int, first_seed: int) -> None:
        tally = Tally(check)
        for case in drawn(cases, count, first_seed):
            tally.run(case)
        request.node.user_properties.append(("cases", f"{tally} (HERO_RANDOM_SEED={first_seed})"))
        tally.assert_right()

    def fixed(request: pytest.FixtureRequest) -> None:
        run(request, FIXED_CASES, first_seed=0)

    @pytest.mark.long
    def fresh(request: pytest.FixtureRequest) -> None:
        given_seed = os.environ.get("HERO_RANDOM_SEED")
        run(
            request,
            int(os.environ.get("HERO_RANDOM_CASES", "200")),
            int(given_seed) if given_seed else random.SystemRandom().randrange(2**32),
        )

    return fixed, fresh


def reproduce(check: Check) -> None:
    """`--case JSON`: runs the check on one case and prints the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", type=json.loads, required=True)
    case = parser.parse_args().case
    try:
        with tempfile.TemporaryDirectory(prefix="hero-moe-case-") as folder:
            check(case, Path(folder))
    except Rejected as rejection:
        print(f"rejected: {rejection}")
        return
    except AssertionError as error:
        sys.exit(f"wrong: {error}")
    print("right")
