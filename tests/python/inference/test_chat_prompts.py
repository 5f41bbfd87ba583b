"""Prompts of `hero serve` equal those of transformers, also for exported runs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from chat_runs import USER, chatml, client_of, create, trained_on_chats, without_template
from chat_templates import SPECIAL, TEMPLATES, conversations
from data_files import train_sentencepiece
from hero_moe.data import compile_template, load_tokenizer
from hero_moe.data.encoders import make_encoder
from program import checkpoint, run_hero
from serving import serving


@pytest.fixture(scope="module")
def bare(chat_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return without_template(chat_run, tmp_path_factory.mktemp("bare") / "tiny")


@pytest.mark.parametrize("name", TEMPLATES)
def test_prompts_equal_those_of_transformers(bare: Path, tmp_path: Path, name: str) -> None:
    """The log-probabilities of an answer are those of a completion of the ids of apply_chat_template."""
    folder = tmp_path / "tiny"
    shutil.copytree(bare, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATES[name])
    for file in ("config.toml", "config.json"):  # room for long control tokens
        text = (folder / file).read_text()
        (folder / file).write_text(re.sub(r'(max_position_embeddings"?)( = |: )128', r"\1\g<2>1024", text))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    compared = []
    with serving(folder) as server:
        client = client_of(server)

        @settings(
            max_examples=12,
            derandomize=True,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        @given(st.data())
        def check(data: st.DataObject) -> None:
            messages = data.draw(conversations(max_turns=2))
            options: dict[str, Any] = {"max_tokens": 2, "seed": 1, "extra_body": {"ignore_eos": True}}
            try:
                ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            except Exception as error:
                with pytest.raises(openai.BadRequestError) as caught:
                    create(client, messages, **options)
                assert " ".join(str(error).split()) in caught.value.body["message"]
                return
            found = create(client, messages, logprobs=True, **options)
            expected = client.completions.create(model="tiny", prompt=[ids], logprobs=0, **options)
            assert found.usage == expected.usage
            logs = [token.logprob for token in found.choices[0].logprobs.content]
            assert logs == expected.choices[0].logprobs.token_logprobs
            compared.append(ids)

        check()
        assert len(compared) >= 3
        info = json.loads(server.request("/tokenizer_info")[1])
        assert info["chat_template"] == TEMPLATES[name]


def test_trained_template_in_exports(chat_run: Path, tmp_path: Path) -> None:
    """Training, export and transformers: the same prompt everywhere."""
    run_hero("export", chat_run, tmp_path / "exported")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "exported")
    messages = [*USER, {"role": "assistant", "content": "路由"}, {"role": "user", "content": "x"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == chatml(messages)
    resumed = json.loads((tmp_path / "exported" / "tokenizer_config.json").read_text())
    assert resumed["eos_token"] == "<|endoftext|>"
    assert (checkpoint(chat_run, 40) / "chat_template.jinja").read_bytes() == (
        tmp_path / "exported" / "chat_template.jinja").read_bytes()  # fmt: skip
    copy = tmp_path / "resumed"
    shutil.copytree(chat_run, copy)
    run_hero("train", "--run", copy, "--resume", "--train.steps=41")
    assert (checkpoint(copy, 41) / "chat_template.jinja").exists()


def test_sentencepiece_run(tmp_path: Path) -> None:
    """Control pieces that the template writes become their ids, as in training; also after an export."""
    pieces = train_sentencepiece(tmp_path)
    template = tmp_path / "own.jinja"
    template.write_text(
        "{% for m in messages %}{{ '<' ~ m.role ~ '>' ~ m.content ~ (eos_token if m.role == 'assistant') }}"
        "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    run = trained_on_chats(tmp_path, pieces, str(template))
    messages = [
        *USER,
        {"role": "assistant", "content": "路由 🦆 \u2581"},
        {"role": "user", "content": "</s> x"},
    ]
    text = compile_template(template.read_text())(messages, {"eos_token": "</s>"}, add_generation_prompt=True)
    (ids,) = make_encoder(load_tokenizer(str(pieces))).encode([text], conversation=True)
    assert ids.count(1) == 2
    options: dict[str, Any] = {"max_tokens": 2, "seed": 1, "extra_body": {"ignore_eos": True}}
    run_hero("export", run, tmp_path / "tiny-exported")
    for folder in (run, tmp_path / "tiny-exported"):
        with serving(folder, "--model-name", "tiny", "--dtype", "fp64") as server:
            client = client_of(server)
            found = create(client, messages, logprobs=True, **options)
            expected = client.completions.create(model="tiny", prompt=[ids], logprobs=0, **options)
            assert found.usage == expected.usage
            logs = [token.logprob for token in found.choices[0].logprobs.content]
            assert logs == expected.choices[0].logprobs.token_logprobs
    exported = AutoTokenizer.from_pretrained(tmp_path / "tiny-exported")
    found = exported.apply_chat_template(
        messages,
        add_generation_prompt=True,
        return_dict=False,
        tokenizer_kwargs={"split_special_tokens": False},
    )
    assert found == ids
