"""Random models, prompts and sampling options: sequences that join and leave a batch get the ids that a forward pass over
the whole sequence allows, and in fp64 those that each gets alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import hero_moe
from layout_strategies import STEPS, trained_models
from program import checkpoint, hero
from random_cases import Case, expect_success, property_tests, reproduce
from random_data import train_words
from strategies import DrawFn, option

pytestmark = pytest.mark.usefixtures("one_thread")

# Largest difference between logits with and without a cache, relative to the largest logit.
TOLERANCES = {"fp64": 1e-11, "fp32": 2e-5}


@st.composite
def texts(draw: DrawFn, vocabulary: int, positions: int) -> dict[str, Any]:
    length = draw(st.integers(1, positions - 1))
    return {
        "ids": draw(st.lists(st.integers(0, vocabulary - 1), min_size=length, max_size=length)),
        "first_step": draw(st.integers(0, 4)),
        "drop_after": draw(option(None, None, None, 1, 3)),
        "sampling": {
            "max_tokens": draw(st.integers(1, 12)),
            "temperature": draw(option(0.0, 0.0, 0.5, 1.0, 3.0)),
            "top_k": draw(option(0, 0, 1, 5)),
            "top_p": draw(option(1.0, 1.0, 0.6, 0.0)),
            "seed": draw(st.integers(0, 2**64 - 1)),
        },
    }


@st.composite
def cases(draw: DrawFn) -> Case:
    """A capacity outside training depends on the tokens of a forward pass, so there is none."""
    options = draw(trained_models()) | {
        "train.dtype": draw(option("fp64", "fp64", "fp32")),
        "router.eval_capacity_factor": 0.0,
    }
    if options["model.model_type"] != "olmoe" and draw(st.booleans()):  # sizes of our kernels
        sizes = {"model.hidden_size": 32, "model.moe_intermediate_size": 16, "model.head_dim": 16}
        options |= {key: value for key, value in sizes.items() if key in options}
    some = texts(options["model.vocab_size"], options["model.max_position_embeddings"])
    return {"options": options, "texts": draw(st.lists(some, min_size=1, max_size=6))}


def generate_together(model: hero_moe.LanguageModel, wanted: list[dict[str, Any]]) -> list[list[int]]:
    """The new ids of every text. Each joins the batch at its step and leaves it early if it is dropped."""
    batch = model.texts()
    generated: list[list[int]] = [[] for _ in wanted]
    texts: dict[int, int] = {}  # by their number in the batch
    step = 0
    while len(texts) < len(wanted) or texts and step < 100:
        for index, text in enumerate(wanted):
            if text["first_step"] == step:
                texts[batch.add(text["ids"], **text["sampling"], eos=())] = index
        for number, new in batch.step():
            index = texts[number]
            if new is None:
                continue
            generated[index].append(new)
            if len(generated[index]) == wanted[index]["drop_after"]:
                batch.drop(number)
        step += 1
    return generated


def assert_allowed(logits: Tensor, chosen: int, sampling: dict[str, Any], tolerance: float) -> None:
    """Asserts that the sampling options allow the id, given its logits [V] up to `tolerance`."""
    own = logits[chosen]
    better = logits > own + 2 * tolerance
    best = 1 if sampling["temperature"] == 0 else sampling["top_k"] or len(logits)
    assert better.sum() < best, f"id {chosen} has rank {int(better.sum())} of {best}"
    if sampling["temperature"] == 0:
        return
    kept = logits.topk(best).values[-1] - 2 * tolerance
    probs = torch.where(logits >= kept, logits / sampling["temperature"], -torch.inf).softmax(-1)
    total = probs[better].sum()
    assert total <= sampling["top_p"] + 0.01 or not better.any(), f"ids before {chosen} have {total}"


def check(case: Case, folder: Path) -> None:
    options = case["options"]
    done = hero(*train_words(folder / "run", options | {"checkpoint.every": 0}), cwd=folder)
    expect_success(done.returncode, done.stderr, options)
    model = hero_moe.load(checkpoint(folder / "run", STEPS), device="cpu")
    assert model.dtype == options["train.dtype"]
    generated = generate_together(model, case["texts"])
    for text, new in zip(case["texts"], generated, strict=True):
        sampling, start = text["sampling"], len(text["ids"])
        length = min(sampling["max_tokens"], model.max_positions - start, text["drop_after"] or 100)
        assert len(new) == length
        ids = text["ids"] + new
        logits = model.logits(ids)
        tolerance = TOLERANCES[model.dtype] * logits.abs().max().item()
        for i, chosen in enumerate(new):
            assert_allowed(logits[start + i - 1], chosen, sampling, tolerance)
        logprobs, greedy = model.token_logprobs(ids)
        want = logits.log_softmax(-1)[range(len(ids) - 1), ids[1:]]
        assert (logprobs - want).abs().max() <= 2 * tolerance
        assert torch.equal(greedy, logits[:-1].argmax(-1) == torch.tensor(ids[1:]))
        if model.dtype == "fp64":
            assert model.generate(text["ids"], **sampling, eos=())[:length] == new


test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    reproduce(check)
