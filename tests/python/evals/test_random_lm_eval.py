"""Random requests of lm-evaluation-harness with random options: `hero` answers like lm_eval's HFLM with one
sequence at a time, in batches of any size."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from lm_eval.models.huggingface import HFLM

from hero_moe.evals.harness import HeroLM
from hf_models import class_of, configuration
from lm_eval_models import (
    FAMILIES,
    LOGPROB,
    continuation_logits,
    instances,
    nearly_tied,
    offline,
    pieces_of_text,
    write_model,
)
from random_cases import Case, property_tests, reproduce

TIE = 1e-4  # logits that differ by less: rounding decides which is the largest
STARTS = ["", "<|end|>", "<|begin|>", "e", " "]
STOPS = ["", "\n", "e", "th", "的", "<|end|>", " \u0301", "return x", "\ufffd"]


MODELS = TemporaryDirectory(prefix="hero-moe-lm-eval-")  # removed at exit


@cache
def model_folder(name: str) -> Path:
    return write_model(name, Path(MODELS.name) / name)


@st.composite
def texts(draw: st.DrawFn, longest: int) -> str:
    """With a character that is not whitespace: HFLM fails for others."""
    length = draw(st.integers(1, longest))
    return draw(st.sampled_from(STARTS)) + pieces_of_text(draw(st.integers(0, 999)), [length])[0] + "x"


@st.composite
def cases(draw: st.DrawFn) -> Case:
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        options["max_length"] = draw(st.integers(20, 128))
    if draw(st.booleans()):
        options["add_bos_token"] = draw(st.booleans())
    if draw(st.booleans()):
        options["prefix_token_id"] = draw(st.sampled_from([0, 1, 70, 300]))
    limit = options.get("max_length", 128)
    generation = st.fixed_dictionaries(
        {"max_gen_toks": st.integers(1, min(limit - 1, 24)), "do_sample": st.just(False)},
        optional={"until": st.lists(st.sampled_from(STOPS), max_size=3) | st.sampled_from(STOPS)},
    )
    return {
        "family": draw(st.sampled_from(sorted(FAMILIES))),
        "options": options,
        "batch_size": draw(st.sampled_from([None, 1, 3, "auto"])),
        "scored": draw(st.lists(st.tuples(texts(600), texts(30)), min_size=4, max_size=8)),
        "rolling": draw(st.lists(texts(900), min_size=1, max_size=3)),
        "generated": draw(st.lists(st.tuples(texts(600), generation), min_size=2, max_size=6)),
    }


def generated_logits(model: HeroLM, prompt: str, count: int) -> torch.Tensor:
    """Logits of the tokens that follow a prompt."""
    ids = model._encode_prompt(prompt)[-(model.max_length - count) :]
    made = model._model.generate(ids, max_tokens=count, temperature=0)
    return model._model.logits((ids + made)[:-1])[-len(made) :]


def one_at_a_time(lm: HFLM, kind: str, requests: list[tuple[Any, ...]]) -> list[Any]:
    """HFLM decides for a whole batch whether its first text starts with a BOS token."""
    return [getattr(lm, kind)(instances(kind, [one]), disable_tqdm=True)[0] for one in requests]


def check(case: Case, folder: Path) -> None:
    source, options = str(model_folder(case["family"])), case["options"]
    hero_code = "hero" in case["family"]
    model = class_of(configuration(case["family"])).from_pretrained(source).eval() if hero_code else source
    with offline():
        theirs = HFLM(model, tokenizer=source, device="cpu", dtype="float32", batch_size=1, **options)
        ours = HeroLM(source, batch_size=case["batch_size"], **options)
        scored = [tuple(one) for one in case["scored"] if ours._encode_pair(*one)[1]]
        expected = one_at_a_time(theirs, "loglikelihood", scored)
        found = ours.loglikelihood(instances("loglikelihood", scored), disable_tqdm=True)
        assert [p for p, _ in found] == pytest.approx([p for p, _ in expected], abs=LOGPROB, rel=0)
        for request, a, b in zip(scored, found, expected, strict=True):
            assert a[1] == b[1] or nearly_tied(continuation_logits(ours, *request), TIE), request

        rolling = [(text,) for text in case["rolling"]]
        found = ours.loglikelihood_rolling(instances("loglikelihood_rolling", rolling), disable_tqdm=True)
        expected = one_at_a_time(theirs, "loglikelihood_rolling", rolling)
        assert found == pytest.approx(expected, abs=LOGPROB, rel=0)

        generated = [(prompt, dict(chosen)) for prompt, chosen in case["generated"]]
        found = ours.generate_until(instances("generate_until", generated), disable_tqdm=True)
        expected = one_at_a_time(theirs, "generate_until", generated)
        for (prompt, chosen), a, b in zip(generated, found, expected, strict=True):
            count = chosen["max_gen_toks"]
            assert a == b or nearly_tied(generated_logits(ours, prompt, count), TIE), (prompt, chosen)


logging.getLogger("lm_eval").setLevel(logging.ERROR)
test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    torch.set_num_threads(1)
    reproduce(check)
