"""Random models, routers and training options against a reference: plain fp64 code without the operators.
Both train the same steps on the same random tokens in one process (tests/model/oracle_case.cpp), which
subtracts what rounding errors may change."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from program import DEEPSEEK, ENVIRONMENT, toml
from random_cases import ROOT, Case, expect_success, property_tests, reproduce
from strategies import models, routers, training

PROGRAM = ROOT / "build" / "tests" / "oracle_case"
TOLERANCE = 1e-9


@st.composite
def cases(draw: st.DrawFn) -> Case:
    model = draw(models())
    router = draw(routers(model))
    return model | router | draw(training(model, router))


def compare(case: Case, folder: Path, *words: str) -> dict[str, Any]:
    """Largest differences of losses, gradients, norms per layer and component, routing metrics, weights, biases and
    expert shares after every step, and at the end of the logits outside training."""
    config = folder / "case.toml"
    config.write_text(toml(case))
    done = subprocess.run(
        [PROGRAM, "--config", config, *words],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    expect_success(done.returncode, done.stderr, case)
    found: dict[str, Any] = json.loads(done.stdout)
    kinds = {"loss", "gradient_norm", "gradients", "norms", "layers", "weights", "shares", "evaluation"}
    assert set(found["differences"]) - {"bias"} == kinds
    return found


def check(case: Case, folder: Path) -> None:
    found = compare(case, folder)
    too_large = {
        f"{kind} {found['worst'][kind]}".strip(): difference
        for kind, difference in found["differences"].items()
        if not (difference is not None and difference <= TOLERANCE)
    }
    assert not too_large, f"relative differences above {TOLERANCE}: {too_large}"


ZERO = {
    "model.vocab_size": 19,
    "model.hidden_size": 24,
    "model.num_hidden_layers": 3,
    "model.num_attention_heads": 2,
    "model.num_key_value_heads": 1,
    "model.head_dim": 6,
    "model.num_experts": 5,
    "model.num_experts_per_tok": 1,
    "model.norm_topk_prob": True,
    "model.moe_intermediate_size": 8,
    "model.initializer_range": 0.1,
    "router.kind": "hero",
    "router.balance": "none",
    "train.dtype": "fp64",
    "train.device": "cpu",
    "train.threads": 1,
    "train.seed": 3,
    "train.steps": 3,
    "train.sequence": 8,
    "train.micro_batch": 2,
    "train.global_batch": 4,
    "train.trainable": "routers",
    "optim.warmup_steps": 0,
    "optim.lr": 1e-2,
}
GATE = "model.layers.1.mlp.gate.weight"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"optim.kind": "muon", "optim.muon_router": True},
        {"train.trainable": "all"},
        DEEPSEEK | {"model.norm_topk_eps": 1e-20, "router.force_balance": True},
    ],
    ids=["adamw", "muon", "all weights", "forced balance"],
)
def test_gradients_that_are_zero(tmp_path: Path, settings: Case) -> None:
    """The weight of a single expert is always 1: the routers' gradients are rounding errors."""
    check(ZERO | settings, tmp_path)


@pytest.mark.parametrize(
    ("settings", "weight"),
    [
        ({"model.num_experts_per_tok": 2}, GATE),
        ({"model.norm_topk_prob": False}, GATE),
        ({"router.z_loss": 1e-3}, GATE),
        ({"train.trainable": "all"}, "model.layers.0.self_attn.k_proj.weight"),
        ({"train.trainable": "all"}, "model.layers.1.mlp.experts.3.up_proj.weight"),
        ({"train.trainable": "all"}, "lm_head.weight"),
    ],
)
@pytest.mark.parametrize("error", [1.2e-9, -1.2e-9])
def test_finds_an_error_in_one_gradient(tmp_path: Path, settings: Case, weight: str, error: float) -> None:
    check(ZERO | settings, tmp_path)
    found = compare(ZERO | settings, tmp_path, "--scale", weight, repr(1 + error))
    assert found["worst"]["gradients"] == weight
    assert TOLERANCE < found["differences"]["gradients"] == pytest.approx(abs(error), rel=0.05)


test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    reproduce(check)
