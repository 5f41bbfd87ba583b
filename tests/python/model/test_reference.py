"""Random models, routers and training options against a reference: plain fp64 code without the operators.
Both train the same steps on the same random tokens in one process (tests/model/oracle_case.cpp)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from hypothesis import strategies as st

from program import ENVIRONMENT, toml
from random_cases import ROOT, Case, expect_success, property_tests, reproduce
from strategies import models, routers, training

PROGRAM = ROOT / "build" / "tests" / "oracle_case"
TOLERANCE = 1e-9


@st.composite
def cases(draw: st.DrawFn) -> Case:
    model = draw(models())
    router = draw(routers(model))
    return model | router | draw(training(model, router))


def check(case: Case, folder: Path) -> None:
    """Compares losses, gradients, norms per layer and component, weights, biases and expert shares after every
    step, and at the end the logits outside training."""
    config = folder / "case.toml"
    config.write_text(toml(case))
    done = subprocess.run(
        [PROGRAM, "--config", config],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    expect_success(done.returncode, done.stderr, case)
    found = json.loads(done.stdout)
    kinds = {"loss", "gradient_norm", "gradients", "norms", "weights", "shares", "evaluation"}
    assert set(found["differences"]) - {"bias"} == kinds
    too_large = {
        f"{kind} {found['worst'][kind]}".strip(): difference
        for kind, difference in found["differences"].items()
        if not (difference is not None and difference <= TOLERANCE)
    }
    assert not too_large, f"relative differences above {TOLERANCE}: {too_large}"


test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    reproduce(check)
