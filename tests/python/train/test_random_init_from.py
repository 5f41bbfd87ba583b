"""Random models: training from the weights of a run, of its checkpoint or of its exported folder starts with equal bits,
whether the model's options are repeated or taken from there; a learning rate of nearly zero changes no weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from safetensors.numpy import load_file

from layout_strategies import STEPS, trained_models
from program import assert_same_outcome, checkpoint, hero, run_hero
from random_cases import Case, expect_success, property_tests, reproduce
from random_data import train_words
from strategies import DrawFn

pytestmark = pytest.mark.usefixtures("one_thread")

# What --init-from takes from its source besides model.* (docs/options.md).
ROUTER_KEYS = ("kind", "window", "scale", "stages", "stage_sizes", "eps", "detach", "history", "state_size")
MORE_STEPS = 2
NO_RATE = 1e-30


@st.composite
def cases(draw: DrawFn) -> Case:
    """`later`: options of the second training that may differ from the first one's."""
    options = draw(trained_models()) | {
        "model.norm_topk_eps": 1e-20,  # exported folders have no other
        "train.dtype": draw(st.sampled_from(["fp32", "bf16"])),  # folders have no fp64
    }
    later = {
        "train.steps": MORE_STEPS,
        "train.seed": draw(st.integers(0, 2**32 - 1)),
        "optim.lr": draw(st.sampled_from([NO_RATE, 1e-2])),
        "optim.min_lr": 0.0,
        "optim.warmup_steps": 0,
        "router.balance_loss": draw(st.sampled_from([0.0, 0.1])),
    }
    return {"options": options, "later": later}


def taken(key: str) -> bool:
    """Whether --init-from takes the option from its source."""
    section, _, name = key.partition(".")
    return section == "model" or (section == "router" and name in ROUTER_KEYS)


def check(case: Case, folder: Path) -> None:
    options = case["options"]
    first = hero(*train_words(folder / "first", options))
    expect_success(first.returncode, first.stderr, options)
    run_hero("export", folder / "first", folder / "exported")
    source = checkpoint(folder / "first", STEPS)
    later = {key: value for key, value in options.items() if key != "data.phase"} | case["later"]
    alone = {key: value for key, value in later.items() if not taken(key)} | {
        "model.vocab_size": options["model.vocab_size"]
    }
    trainings: dict[str, tuple[Path, dict[str, Any]]] = {
        "run": (folder / "first", later),
        "run-alone": (folder / "first", alone),
        "checkpoint-alone": (source, alone),
        "folder-alone": (folder / "exported", alone),
    }
    for name, (where, settings) in trainings.items():
        result = hero(*train_words(folder / name, settings), "--init-from", where)
        expect_success(result.returncode, result.stderr, settings)
        assert_same_outcome(folder / name, folder / "run", MORE_STEPS)
    if case["later"]["optim.lr"] == NO_RATE:
        before, after = (
            load_file(c / "model.safetensors") for c in (source, checkpoint(folder / "run", MORE_STEPS))
        )
        assert before.keys() == after.keys()
        for name, values in before.items():
            if name.endswith("e_score_correction_bias"):
                continue  # follows the load, not the learning rate
            assert np.abs(after[name] - values).max(initial=0) < 1e-25, name


test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    reproduce(check)
