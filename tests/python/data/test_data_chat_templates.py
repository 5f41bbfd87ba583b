"""Templates with the features of ten model families render as in transformers."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from chat_templates import ENDS, SPECIAL, TEMPLATES, conversations
from data_files import train_bpe
from hero_moe.data import BUILT_IN, compile_template, load_tokenizer
from hero_moe.data.encoders import make_encoder

ALL = TEMPLATES | {f"built-in {name}": source for name, source in BUILT_IN.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_bpe(tmp_path_factory.mktemp("bpe"))


@cache
def reference(folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **SPECIAL)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_conversations(folder: Path, name: str, data: st.DataObject) -> None:
    """The same text, ids and rejections, with and without the beginning of the next answer."""
    messages = data.draw(conversations(whole=True))
    prompt = data.draw(st.booleans())
    options = {"chat_template": ALL[name], "add_generation_prompt": prompt}
    template = compile_template(ALL[name])
    try:
        expected = reference(folder).apply_chat_template(messages, tokenize=False, **options)
    except Exception as error:
        with pytest.raises(type(error)) as caught:
            template(messages, SPECIAL, add_generation_prompt=prompt)
        assert str(caught.value) == str(error)
        return
    text = template(messages, SPECIAL, add_generation_prompt=prompt)
    assert text == expected
    ids = reference(folder).apply_chat_template(messages, return_dict=False, **options)
    assert make_encoder(load_tokenizer(str(folder))).encode([text], conversation=True) == [ids]


def test_generation_prompts_of_built_in_templates() -> None:
    """They continue the conversation as an answer in training does."""
    chat = [{"role": "user", "content": "a"}]
    answered = [*chat, {"role": "assistant", "content": "b"}]
    for source in BUILT_IN.values():
        template = compile_template(source)
        prompt = template(chat, {}, add_generation_prompt=True)
        rest = template(answered, {}).removeprefix(prompt)
        assert template(answered, {}).startswith(prompt) and rest.lstrip(" ").startswith("b")


@pytest.mark.parametrize("name", TEMPLATES)
def test_text_after_an_answer(name: str) -> None:
    """What src/inference/end_of_turn.cpp finds: the rest of the line, without white space around it."""
    chat = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
    text = compile_template(TEMPLATES[name])(chat, SPECIAL)
    assert text.split("answer")[-1].split("\n")[0].strip() == ENDS[name]


def test_namespaces_have_no_private_names() -> None:
    for source in ("{{ namespace(_a=1) }}", "{% set n = namespace(a=1) %}{% set n._a = 2 %}"):
        with pytest.raises(Exception, match="underscore"):
            compile_template(source)([], {})
