"""Warnings about experts that receive far too many tokens, or none, over 100 steps of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from program import DEEPSEEK, checkpoint, run_hero, training, write_megatron

EXPERTS, WINDOW = 16, 100
SMALL_STEP: dict[str, Any] = {
    "model.num_hidden_layers": 2,
    "model.num_experts": EXPERTS,
    "model.num_experts_per_tok": 1,
    "model.norm_topk_prob": False,
    "router.balance_loss": 0.0,
    "train.dtype": "fp32",
    "train.steps": 130,
    "train.sequence": 32,
    "train.routing_every": 1,
    "optim.schedule": "constant",
}
# With data of a single token: its expert never changes.
CONSTANT = SMALL_STEP | {
    "model.vocab_size": 64,
    "optim.lr": 1e-8,
    "optim.min_lr": 0.0,
    "optim.router_lr": 0.0,
}
# The routers' learning rate is far too large: some experts never get a token.
COLLAPSE = SMALL_STEP | {"optim.lr": 3e-3, "optim.router_lr": 100.0}


@pytest.fixture(scope="module")
def one_token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token files of a single repeated token: all hidden states of a layer are equal."""
    prefix = tmp_path_factory.mktemp("one-token") / "same"
    write_megatron(prefix, [[7] * 400] * 20)
    return prefix


def expected_lines(run: Path, advice: str) -> dict[str, int]:
    """The warnings by the definition, from the logged shares, and the steps after which they appear."""
    text = (run / "routing.jsonl").read_text().splitlines()
    shares = np.array([json.loads(line)["expert_share"] for line in text])
    lines: dict[str, int] = {}

    def add(condition: np.ndarray, describe: Any) -> None:
        for end in range(WINDOW, len(shares) + 1):
            complete = condition[end - WINDOW : end].all(0)
            if complete.any():
                mean = np.where(complete, shares[end - WINDOW : end].mean(0), -1)
                layer, expert = np.unravel_index(mean.argmax(), mean.shape)
                others = int(complete.sum()) - 1
                more = f" (and {others} more expert{'s' if others > 1 else ''})" if others else ""
                said = describe(mean[layer, expert])
                lines[
                    f"warning: layer {layer + 1}, expert {expert}: {said}{more}; in a new run, {advice}"
                ] = end
                return

    add(
        shares * EXPERTS > 5,
        lambda mean: (
            f"{100 * mean:.3g}% of tokens over 100 steps, more than five times its uniform share of 6.25%"
        ),
    )
    add(shares == 0, lambda mean: "no tokens over 100 steps")
    return lines


def warned(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("warning: layer ")]


ADVICE = "raise router.balance_loss (now 0.0) or router.z_loss (now 0.0)"
BIAS = "raise router.balance_loss (now 0.0), router.bias_update_rate (now 0.0) or router.z_loss (now 0.0)"


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({}, ADVICE),
        ({"router.balance": "none"}, "set router.balance (now none) or router.z_loss (now 0.0)"),
        (DEEPSEEK | {"router.bias_update_rate": 0.0}, BIAS),
    ],
    ids=["qwen3", "without balance", "deepseek"],
)
def test_one_expert_receives_all_tokens(
    one_token: Path, tmp_path: Path, settings: dict[str, Any], advice: str
) -> None:
    run = tmp_path / "run"
    result = run_hero(*training(run, one_token, CONSTANT | settings))
    expected = expected_lines(run, advice)
    assert list(expected.values()) == [100, 100]
    assert " 100% of tokens over 100 steps" in next(iter(expected))
    assert warned(result.stderr) == list(expected)
    # Before the line of the step.
    lines = result.stderr.splitlines()
    assert lines[lines.index(next(iter(expected))) + 2].startswith("step 100/130 ")


def test_collapsed_routers(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = run_hero(*training(run, data, COLLAPSE))
    expected = expected_lines(run, ADVICE)
    assert any("no tokens over 100 steps" in line for line in expected)
    assert sorted(warned(result.stderr)) == sorted(expected)


def test_a_resumed_run_counts_anew(one_token: Path, tmp_path: Path) -> None:
    """150 steps, but not 100 of one process; the run in one process has two warnings."""
    run = tmp_path / "run"
    assert warned(run_hero(*training(run, one_token, CONSTANT | {"train.steps": 75})).stderr) == []
    assert warned(run_hero("train", "--run", run, "--resume", "--train.steps=150").stderr) == []
    assert checkpoint(run, 150).exists() and len(expected_lines(run, ADVICE)) == 2


def test_healthy_run(data: Path, tmp_path: Path) -> None:
    """The same model and data with the balance loss and one learning rate."""
    run = tmp_path / "run"
    settings = {"router.balance_loss": 0.01, "optim.router_lr": 1.0, "optim.lr": 1e-3}
    result = run_hero(*training(run, data, COLLAPSE | settings))
    assert "warning" not in result.stderr
    assert expected_lines(run, ADVICE) == {}
