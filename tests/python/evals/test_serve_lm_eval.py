"""lm-evaluation-harness over HTTP: `local-completions` agrees with the model `hero` on the same folder."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

from conftest import chinese_text, python_text
from hero_moe.evals.harness import HeroLM
from lm_eval_models import TEMPLATE, trained_tokenizer
from program import DEEPSEEK, checkpoint, run_hero, training
from serving import Server, serving

# A sum over at most 125 tokens, each off by rounding in fp32.
LOGPROB = 1e-3


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A HERO model in fp32, trained for a few steps."""
    folder = tmp_path_factory.mktemp("serve") / "tiny"
    settings = DEEPSEEK | {"router.kind": "hero", "train.dtype": "fp32", "train.steps": 30, "optim.lr": 3e-3}
    run_hero(*training(folder, data, settings))
    return folder


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Server]:
    with serving(run) as started:
        yield started


@pytest.fixture(scope="module")
def ours(run: Path) -> HeroLM:
    torch.set_num_threads(1)
    # local-completions reserves a position for the requested token, and in windows one more.
    return HeroLM(str(checkpoint(run, 30)), max_length=126, batch_size=16)


def theirs(server: Server, **options: Any) -> LocalCompletionsAPI:
    url = f"{server.url}/v1/completions"
    return LocalCompletionsAPI(base_url=url, model="tiny", max_length=128, max_retries=1, **options)


def instances(kind: str, requests: list[tuple[Any, ...]]) -> list[Instance]:
    return [Instance(kind, {}, arguments, n) for n, arguments in enumerate(requests)]


def scored_requests() -> list[tuple[str, str]]:
    """Contexts and continuations, including empty and shared contexts."""
    rng = random.Random(3)
    requests = [("", "def"), ("", "的一是"), ("def ", "index_1"), ("x = 1\n", "y = 2\n")]
    for n in range(12):
        text = (python_text, chinese_text)[n % 2](rng)
        begin, size = rng.randrange(80), rng.randint(2, 80)
        text = text[begin:]
        requests.append((text[:size], text[size : size + rng.randint(12, 25)]))
        requests.append((text[:size], " left"))
    return requests


@pytest.mark.parametrize("options", [{"batch_size": 7}, {"num_concurrent": 6}], ids=["batches", "concurrent"])
def test_loglikelihoods(server: Server, ours: HeroLM, options: dict[str, Any]) -> None:
    model = theirs(server, **options)
    assert model.tokenizer_backend == "remote" and model.prefix_token_id == ours.prefix_token_id == 1
    requests = instances("loglikelihood", scored_requests())
    found = model.loglikelihood(requests, disable_tqdm=True)
    expected = ours.loglikelihood(requests, disable_tqdm=True)
    assert [pair[0] for pair in found] == pytest.approx([pair[0] for pair in expected], abs=LOGPROB, rel=0)
    assert [pair[1] for pair in found] == [pair[1] for pair in expected]


def test_greedy_continuations_are_greedy(server: Server, ours: HeroLM) -> None:
    texts = theirs(server).generate_until(
        instances("generate_until", [("def index", {"until": ["\n"], "max_gen_toks": 6})]), disable_tqdm=True
    )
    requests = instances("loglikelihood", [("def index", texts[0]), ("def index", texts[0] + "的")])
    assert [pair[1] for pair in theirs(server).loglikelihood(requests, disable_tqdm=True)] == [
        pair[1] for pair in ours.loglikelihood(requests, disable_tqdm=True)
    ]


def test_rolling_loglikelihoods(server: Server, ours: HeroLM) -> None:
    rng = random.Random(4)
    texts = [(python_text(rng)[:700],), (chinese_text(rng)[:200],), ("a",)]
    requests = instances("loglikelihood_rolling", texts)
    found = theirs(server, num_concurrent=4).loglikelihood_rolling(requests, disable_tqdm=True)
    expected = ours.loglikelihood_rolling(requests, disable_tqdm=True)
    assert found == pytest.approx(expected, abs=5 * LOGPROB, rel=0)  # of several windows


@pytest.mark.parametrize("options", [{"batch_size": 3}, {"num_concurrent": 4}], ids=["batches", "concurrent"])
def test_greedy_texts(server: Server, ours: HeroLM, options: dict[str, Any]) -> None:
    settings = {"until": ["\n\n", "return", "。"], "max_gen_toks": 30}
    prompts = ["def index_1(node):\n\treturn ", "def ", "的一是不了", "left", "for x", "上来"]
    requests = instances("generate_until", [(prompt, settings) for prompt in prompts])
    found = theirs(server, **options).generate_until(requests, disable_tqdm=True)
    assert found == ours.generate_until(requests, disable_tqdm=True)
    assert any(found)


def test_a_transformers_tokenizer(run: Path, tmp_path: Path) -> None:
    """local-completions reads a tokenizer.json with a BOS token and a chat template."""
    tokenizer = trained_tokenizer("<|begin|>")
    tokenizer.save_pretrained(tmp_path)
    with serving(run, "--tokenizer", tmp_path) as server:
        model = theirs(server)
        assert model.prefix_token_id == tokenizer.bos_token_id
        assert model.eot_token_id == tokenizer.eos_token_id
        assert model.eos_string == "<|end|>" and model.tokenizer.tokenizer_info["chat_template"] == TEMPLATE
        for text in ("def index_1(node):\n\treturn ", "的一是 – Ünïcödé 🙂"):
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert model.tok_encode(text) == ids and model.tokenizer.decode(ids) == text
            echoed = server.complete(text, echo=True, logprobs=0, max_tokens=0)["choices"][0]
            assert echoed["text"] == text and len(echoed["logprobs"]["tokens"]) == len(ids)
