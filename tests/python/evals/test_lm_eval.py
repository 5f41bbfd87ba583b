"""lm-evaluation-harness on our engine: `hero` answers requests like lm_eval's HFLM on the same folder."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.models.huggingface import HFLM

from hero_moe.evals.harness import HeroLM
from hf_models import class_of, configuration
from lm_eval_models import (
    FAMILIES,
    LOGPROB,
    TEMPLATE,
    continuation_logits,
    instances,
    nearly_tied,
    offline,
    pieces_of_text,
    write_model,
)
from program import run_hero

TIE = 1e-5  # logits that differ by less: rounding decides which is the largest


@pytest.fixture(scope="module", autouse=True)
def no_downloads() -> Iterator[None]:
    with offline():
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: write_model(name, tmp_path_factory.mktemp(name)) for name in FAMILIES}


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, folders: dict[str, Path]) -> tuple[HFLM, HeroLM]:
    """Both adapters on one folder. HFLM gets the HERO model as an object: loading the folder runs its
    code."""
    folder, options = str(folders[request.param]), FAMILIES[request.param][1]
    hero = class_of(configuration(request.param)).from_pretrained(folder).eval()
    source = hero if "hero" in request.param else folder
    theirs = HFLM(source, tokenizer=folder, device="cpu", dtype="float32", **options)
    return theirs, HeroLM(folder, **options)


def scored_requests(model: HeroLM) -> list[tuple[str, str]]:
    """Contexts and continuations of every kind."""
    rng = random.Random(2)

    def texts(count: int, low: int, high: int) -> list[str]:
        return pieces_of_text(rng.randrange(1000), [rng.randint(low, high) for _ in range(count)])

    choices, prefix = (" node", " left", "):\n\t", "x", "好"), model.tok_decode(model.prefix_token_id, False)
    requests = [("", text) for text in texts(20, 1, 60)]
    requests += [(text, choice) for text in texts(18, 5, 150) for choice in choices]
    requests += zip(texts(30, 1, 200), texts(30, 10, 60), strict=True)  # many tokens
    requests += zip(texts(20, 700, 1500), texts(20, 1, 60), strict=True)  # longer than max_length
    requests += zip(texts(3, 700, 1500), texts(3, 55, 55), strict=True)
    requests += [(text + "  ", end) for text, end in zip(texts(10, 5, 50), texts(10, 5, 9), strict=True)]
    requests += [(prefix + text, "index") for text in texts(10, 5, 50)]
    for context in texts(60, 5, 120):  # the model's own continuation
        made = model._model.generate(model.tok_encode(context), max_tokens=1, temperature=0)
        text = model.tok_decode(made)
        if text.strip() and text.isprintable():
            requests.append((context, text))
    # A continuation that the tokenizer merges into its context has no token: an error in both.
    return [(c, end) for c, end in requests if not c or model._encode_pair(c, end)[1]]


def test_loglikelihood(pair: tuple[HFLM, HeroLM]) -> None:
    requests = scored_requests(pair[1])
    assert len(requests) >= 200
    theirs, ours = (lm.loglikelihood(instances("loglikelihood", requests), disable_tqdm=True) for lm in pair)
    assert [logprob for logprob, _ in ours] == pytest.approx([p for p, _ in theirs], abs=LOGPROB, rel=0)
    differ = [r for r, a, b in zip(requests, ours, theirs, strict=True) if a[1] != b[1]]
    assert all(nearly_tied(continuation_logits(pair[1], *request), TIE) for request in differ)
    assert 10 <= sum(greedy for _, greedy in ours) <= len(ours) - 100
    assert all(type(p) is float and type(greedy) is bool for p, greedy in ours)


def test_loglikelihood_rolling(pair: tuple[HFLM, HeroLM]) -> None:
    texts = ["", "a", *pieces_of_text(3, [5, 40, 90, 200, 290, 400, 700, 1200, 1500, 30, 150])]
    requests = instances("loglikelihood_rolling", [(text,) for text in texts])
    theirs, ours = (lm.loglikelihood_rolling(requests, disable_tqdm=True) for lm in pair)
    assert ours == pytest.approx(theirs, abs=LOGPROB, rel=0)
    assert max(len(pair[1].tok_encode(text)) for text in texts) > 3 * pair[1].max_length
    assert all(type(total) is float for total in ours)


def test_generate_until(pair: tuple[HFLM, HeroLM]) -> None:
    prompts = pieces_of_text(4, [1, 5, 20, 30, 50, 70, 100, 150, 700, 1500])
    options: list[dict[str, Any]] = [
        {"until": ["\n", "e"], "max_gen_toks": 24},
        {"until": "th", "do_sample": False, "temperature": 0.7, "max_gen_toks": 16},
        {"max_new_tokens": 12, "num_beams": 1},
        {"until": [" ", "<|end|>"], "temperature": 0.0, "max_gen_toks": 30},
    ]
    requests = instances("generate_until", [(prompt, dict(o)) for o in options for prompt in prompts])
    theirs, ours = (lm.generate_until(requests, disable_tqdm=True) for lm in pair)
    assert ours == theirs
    assert len(set(ours)) > 20 and len({len(text) for text in ours}) > 8
    assert not any("\n" in text or "e" in text for text in ours[:10])
    ended = [len(pair[1].tok_encode(text, add_special_tokens=False)) < 10 for text in ours[20:30]]
    assert any(ended) and not all(ended)  # by the EOS token


@pytest.mark.parametrize(
    "prefix, prompt, until",
    [(0, "<|end|>def index", []), (70, "ede", []), (1, "<|begin|>def", []), (70, "def", ["", "x"])],
)
def test_unusual_prompts_and_stops(
    folders: dict[str, Path], prefix: int, prompt: str, until: list[str]
) -> None:
    """Prompts that start with the prefix token or the BOS token, and an empty stop string."""
    folder, options = str(folders["deepseek"]), {"prefix_token_id": prefix}
    theirs = HFLM(folder, tokenizer=folder, device="cpu", dtype="float32", batch_size=1, **options)
    ours = HeroLM(folder, **options)
    requests = instances("generate_until", [(prompt, {"until": until, "max_gen_toks": 8})])
    expected = theirs.generate_until(requests, disable_tqdm=True)
    assert ours.generate_until(requests, disable_tqdm=True) == expected


def test_chat_templates(pair: tuple[HFLM, HeroLM]) -> None:
    hf, hero = pair
    send_raw = [{"role": "user", "content": "left?"}, {"role": "assistant", "content": "right"}]
    system = [{"role": "system", "content": "x"}, *send_raw]
    for history, prompt in ((send_raw[:1], True), (send_raw, False), (system, True)):
        expected = hf.apply_chat_template(history, add_generation_prompt=prompt)
        assert hero.apply_chat_template(history, add_generation_prompt=prompt) == expected
    assert hero.chat_template(True) == hf.chat_template(True) == TEMPLATE
    assert hero.tokenizer_name == hf.tokenizer_name


@pytest.fixture(scope="module")
def hero(folders: dict[str, Path]) -> HeroLM:
    return HeroLM(str(folders["qwen3"]))


def test_results_do_not_depend_on_batching(hero: HeroLM, folders: dict[str, Path]) -> None:
    requests = instances("loglikelihood", scored_requests(hero)[:100])
    expected = [p for p, _ in hero.loglikelihood(requests, disable_tqdm=True)]
    for size in (1, "7", "auto:4"):
        other = HeroLM(str(folders["qwen3"]), batch_size=size, max_batch_size=3)
        got = [p for p, _ in other.loglikelihood(requests, disable_tqdm=True)]
        assert got == pytest.approx(expected, abs=2e-4, rel=0)


def test_batched_generation_matches_single_sequences(hero: HeroLM, folders: dict[str, Path]) -> None:
    """Different lengths, stop strings and token counts: finished sequences leave and others join."""
    prompts = pieces_of_text(8, [1, 300, 20, 90, 5, 150, 60, 40, 12, 200, 8, 33])
    stops: list[list[str]] = [["\n"], ["e", "return"], [], ["的", " "]]
    requests = [(p, {"until": stops[n % 4], "max_gen_toks": 4 + 3 * (n % 5)}) for n, p in enumerate(prompts)]
    expected = [
        hero.generate_until([one], disable_tqdm=True)[0] for one in instances("generate_until", requests)
    ]
    for size in (None, 3, "auto:2"):
        other = HeroLM(str(folders["qwen3"]), batch_size=size, max_batch_size=5)
        assert other.generate_until(instances("generate_until", requests), disable_tqdm=True) == expected
    assert len(set(expected)) > 8 and len({len(hero.tok_encode(text)) for text in expected}) > 4


def test_answers_are_cached(hero: HeroLM, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[tuple[Any, ...], Any] = {}

    class Recorder:
        def add_partial(self, kind: str, arguments: tuple[Any, ...], answer: Any) -> None:
            kept[kind, json.dumps(arguments)] = answer

    monkeypatch.setattr(hero, "cache_hook", hero.cache_hook)
    hero.set_cache_hook(Recorder())  # type: ignore[arg-type]
    asked: dict[str, list[tuple[Any, ...]]] = {
        "loglikelihood": [("def", " index"), ("def", " node"), ("", "left")],
        "loglikelihood_rolling": [("def index" * 60,), ("left",)],
        "generate_until": [("def", {"until": ["\n"], "max_gen_toks": 5})],
    }
    for kind, arguments in asked.items():
        answers = getattr(hero, kind)(instances(kind, arguments), disable_tqdm=True)
        expected = {(kind, json.dumps(a)): answer for a, answer in zip(arguments, answers, strict=True)}
        assert {key: value for key, value in kept.items() if key[0] == kind} == expected


def test_sampling_follows_the_harness_seed(hero: HeroLM) -> None:
    options = {"do_sample": True, "temperature": 0.9, "top_p": 0.95, "top_k": 50, "max_gen_toks": 12}
    requests = instances("generate_until", [("def index", options)] * 3)

    def texts(seed: int) -> list[str]:
        torch.manual_seed(seed)
        return hero.generate_until(requests, disable_tqdm=True)

    assert texts(1) == texts(1) != texts(2)
    assert len(set(texts(1))) > 1


def test_sentencepiece_folders(folders: dict[str, Path], data: Path, tmp_path: Path) -> None:
    """A tokenizer.model and the tokenizer that `hero export` writes for transformers agree."""
    pieces = data.with_name("pieces.model")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(folders["qwen3"] / name, tmp_path)
    external = HeroLM(str(tmp_path), tokenizer=str(pieces))
    shutil.copy(pieces, tmp_path / "tokenizer.model")
    run_hero("export", tmp_path, tmp_path / "exported")
    adapters = [external, HeroLM(str(tmp_path)), HeroLM(str(tmp_path / "exported"))]
    assert len({type(lm.tokenizer) for lm in adapters}) == 2
    assert len({lm.eot_token_id for lm in adapters}) == 1
    asked: dict[str, list[tuple[Any, ...]]] = {
        "loglikelihood": [("", "def"), ("def index_1(", "node):\n\t"), ("汉字 ", " <s></s>🙂")],
        "loglikelihood_rolling": [(text,) for text in pieces_of_text(5, [10, 300, 900])],
        "generate_until": [(prompt, {"max_gen_toks": 20}) for prompt in ("", "def", "的一", "  return ")],
    }
    for kind, arguments in asked.items():
        answers = [getattr(lm, kind)(instances(kind, arguments), disable_tqdm=True) for lm in adapters]
        assert answers[0] == answers[1]
        # transformers decodes every byte token next to an invalid one to U+FFFD.
        valid = [(a, b) for a, b in zip(*answers[1:], strict=True) if "\ufffd" not in str(a)]
        assert valid and all(a == b for a, b in valid)
    with pytest.raises(ValueError, match="without a chat template"):
        external.apply_chat_template([{"role": "user", "content": "x"}])


INVALID_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"pretrained": "gpt2"}, "model_args: found pretrained, expected .*path, tokenizer, dtype"),
    "no path": ({"path": None}, "model_args: found no path"),
    "no folder": ({"path": "/nowhere"}, "/nowhere: no such folder"),
    "dtype": ({"dtype": "float16"}, "dtype: found float16, expected fp32, bf16 or fp64"),
    "batch_size": ({"batch_size": 0}, "batch_size: found 0, expected at least 1, or auto"),
    "batch_size's name": ({"batch_size": "big"}, "batch_size: found 'big'"),
    "max_batch_size": ({"max_batch_size": -1}, "max_batch_size: found -1"),
    "add_bos_token": ({"add_bos_token": "yes"}, "add_bos_token: found 'yes', expected true or false"),
    "max_length": ({"max_length": 129}, "max_length: found 129, expected an integer, 1 to 128"),
    "prefix_token_id": ({"prefix_token_id": 512}, "prefix_token_id: found 512, expected an integer, 0 to"),
    "tokenizer": ({"tokenizer": "gpt2"}, "gpt2: found no tokenizer, expected tokenizer.json"),
}


@pytest.mark.parametrize(("options", "message"), INVALID_ARGUMENTS.values(), ids=INVALID_ARGUMENTS)
def test_rejects_invalid_arguments(folders: dict[str, Path], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        arguments = {"path": str(folders["qwen3"])} | options
        HeroLM.create_from_arg_obj(arguments, {"batch_size": 1, "device": None})


def test_rejects_invalid_requests(hero: HeroLM) -> None:
    def generate(**options: Any) -> None:
        hero.generate_until(instances("generate_until", [("def", options)]), disable_tqdm=True)

    with pytest.raises(ValueError, match="gen_kwargs: found penalty, expected until, max_gen_toks"):
        generate(penalty=2, max_gen_toks=5)
    with pytest.raises(ValueError, match="gen_kwargs: found num_beams 4"):
        generate(num_beams=4, max_gen_toks=5)
    with pytest.raises(ValueError, match="max_gen_toks: found 256, expected 1 to max_length - 1 = 127"):
        generate()
    with pytest.raises(ValueError, match="top_p: found 2, expected 0 to 1"):
        generate(do_sample=True, top_p=2, max_gen_toks=5)
    for continuation, count in ((" ", 0), ("\x01" * 129, 129)):
        request = instances("loglikelihood", [("", "\x01" + continuation)] if count else [("a", "")])
        with pytest.raises(ValueError, match=f"found {count + bool(count)} tokens of the continuation"):
            hero.loglikelihood(request, disable_tqdm=True)
