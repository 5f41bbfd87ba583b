"""Random configurations with options that, according to a warning, have no effect: without these options, training
and inference give the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st

from hf_compare import random_logits
from layout_strategies import STEPS, trained_models
from program import assert_same_outcome, checkpoint, hero
from random_cases import Case, expect_success, property_tests, reproduce
from random_data import train_words
from strategies import DrawFn, Options, option

MARK = " has no effect: "
ALWAYS = {"checkpoint.every": 0, "train.routing_every": 1, "train.norms_every": 2}

# Options that only some configurations use, with other values than their defaults.
SOMETIMES = {
    "model.intermediate_size": 24,
    "model.kv_lora_rank": 8,
    "model.norm_topk_eps": 0.2,
    "model.q_lora_rank": 8,
    "model.qk_nope_head_dim": 8,
    "model.qk_rope_head_dim": 4,
    "model.rope_interleave": False,
    "model.rope_scaling.beta_fast": 2.0,
    "model.rope_scaling.factor": 2.0,
    "model.rope_scaling.mscale": 0.7,
    "model.rope_scaling.mscale_all_dim": 1.3,
    "model.rope_scaling.truncate": False,
    "model.v_head_dim": 8,
    "router.balance": "sequence",
    "router.balance_loss": 0.3,
    "router.detach": False,
    "router.drop_policy": "position",
    "router.dtype": "fp32",
    "router.eps": 0.3,
    "router.history": "global",
    "router.init": "zero",
    "router.scale": False,
    "router.stages": 2,
    "router.state_size": 5,
    "router.window": 1,
    "train.mtp_loss": 2.0,
    "optim.decay_shape": "1-sqrt",
    "optim.decay_steps": 1,
    "optim.history_lr": 0.3,
    "optim.history_weight_decay": 0.4,
    "optim.kind": "muon",
    "optim.min_lr": 0.0,
    "optim.muon_momentum": 0.5,
    "optim.muon_router": True,
    "eval.batches": 1,
    "eval.data": ["second-valid"],
    "parallel.history_top": 2,
    "parallel.timeout": 30.0,
}


@st.composite
def cases(draw: DrawFn) -> Case:
    """In every dtype, half of them with sizes for which there are kernels."""
    options = draw(trained_models()) | {"train.dtype": draw(option("bf16", "fp32", "fp64"))}
    if options["model.model_type"] != "olmoe" and draw(st.booleans()):
        options |= {"model.hidden_size": 32, "model.moe_intermediate_size": 16}
    for key, value in SOMETIMES.items():
        if key not in options and draw(st.booleans()):
            options[key] = value
    if "eval.every" in options:
        options["checkpoint.keep_best"] = draw(st.booleans())
    return {"options": options}


def train(run: Path, options: Options) -> list[str]:
    """Runs `hero train`; returns the options that have no effect."""
    done = hero(*train_words(run, options | ALWAYS), cwd=run.parent)
    expect_success(done.returncode, done.stderr, options)
    return [line.split()[1] for line in done.stderr.splitlines() if MARK in line]


def logits(run: Path, options: dict[str, Any]) -> dict[str, torch.Tensor]:
    vocabulary, length, seed = (options[key] for key in ("model.vocab_size", "train.sequence", "train.seed"))
    return random_logits(checkpoint(run, STEPS), vocabulary, length, seed, run.parent)


def check(case: Case, folder: Path) -> None:
    options = case["options"]
    unused = train(folder / "all", options)
    used = {key: value for key, value in options.items() if key not in unused}
    train(folder / "used", used)
    assert_same_outcome(folder / "all", folder / "used", STEPS)
    found, expected = (logits(folder / name, options) for name in ("all", "used"))
    assert found.keys() == expected.keys()
    differ = [name for name, values in expected.items() if not torch.equal(found[name], values)]
    assert not differ, f"other values: {differ}"


test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    reproduce(check)
