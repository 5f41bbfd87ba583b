"""hero_moe.data: chat templates render as in transformers, and their special tokens become ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from data_files import documents, options, train_bpe, train_sentencepiece, write_rows
from hero_moe.data import (
    BUILT_IN,
    DataError,
    RecordFormat,
    TokenizerFile,
    compile_template,
    find_template,
    load_tokenizer,
    tokenize,
)
from hero_moe.data.encoders import make_encoder

CHAT = [
    {"role": "system", "content": "Be  brief. "},
    {"role": "user", "content": "路由?\n<|im_end|> 🦆"},
    {"role": "assistant", "content": " def f(): return {'a': 1}\n"},
    {"role": "user", "content": "ok"},
    {"role": "assistant", "content": "<b>ok</b>", "extra": {"k": ["é"]}},
]
# Features of published templates: loop controls, namespaces, filters, generation blocks, tests for tools.
WILD = """
{%- set ns = namespace(turns=0) %}
{%- if tools %}{{ raise_exception('no tools') }}{% endif %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{% continue %}{% endif %}
    {%- set ns.turns = ns.turns + 1 %}
    {% if message.role == 'assistant' %}
        {% generation %}{{ message['content'].strip() + eos_token }}{% endgeneration %}

    {% else %}
        {{- bos_token if bos_token is defined else '' }}[{{ ns.turns }}]
        {{ message.content | tojson(indent=1) }}
    {% endif %}
    {%- if message.extra is defined %}{{ message.extra | tojson }}{{ strftime_now('%Y') | length }}{% endif %}
    {%- if ns.turns > 3 %}{% break %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant{% endif %}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_bpe(tmp_path_factory.mktemp("bpe"), chat_template=WILD)


@pytest.mark.parametrize("name", [*BUILT_IN, "wild"])
@pytest.mark.parametrize("special", [{}, {"bos_token": "<|im_start|>", "eos_token": "<|endoftext|>"}])
def test_templates_render_as_in_transformers(folder: Path, name: str, special: dict[str, str]) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **special)
    special = {"eos_token": "!", **special} if name == "wild" else special
    if name == "wild" and "bos_token" not in special:
        tokenizer.eos_token = "!"
    source = BUILT_IN.get(name, WILD)
    expected = tokenizer.apply_chat_template(CHAT, chat_template=source, tokenize=False)
    assert compile_template(source)(CHAT, special) == expected
    assert len(expected) > 80


def test_built_in_templates_literally() -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rendered = {
        name: compile_template(source)(chat, {"bos_token": "<s>"}) for name, source in BUILT_IN.items()
    }
    assert rendered == {
        "chatml": "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n",
        "llama3": "<s><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nb<|eot_id|>",
        "deepseek": "<s><｜User｜>a<｜Assistant｜>b<｜end▁of▁sentence｜>",
        "plain": "User: a\n\nAssistant: b",
    }


def test_templates_cannot_reach_python() -> None:
    for source in ("{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}"):
        with pytest.raises(Exception, match="unsafe"):
            compile_template(source)([{"role": "user", "content": "a"}], {})


def test_find_template_sources(tmp_path: Path, folder: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{{ messages | length }}\n")
    assert find_template(str(file), None) == "{{ messages | length }}\n"
    assert find_template("{{ 1 }}", None) == "{{ 1 }}"
    assert find_template("tokenizer", load_tokenizer(str(folder)).chat_template) == WILD
    with pytest.raises(DataError, match="the tokenizer has no chat_template"):
        find_template("tokenizer", None)
    with pytest.raises(DataError, match="--chat-template chatm: no such file, expected a file, chatml"):
        find_template("chatm", None)
    file.write_bytes(b"{{ 1 }}\xff")
    with pytest.raises(DataError, match=r"own.jinja: byte 7: invalid UTF-8"):
        find_template(str(file), None)


@pytest.mark.parametrize("template", [3, {"default": "x"}, [{"name": "default", "template": 3}]])
def test_rejects_templates_that_are_no_text(template: Any, tmp_path: Path) -> None:
    folder = train_bpe(tmp_path / "bpe")
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))
    with pytest.raises(DataError, match="tokenizer_config.json: chat_template: found"):
        load_tokenizer(str(folder))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": [3]}))
    assert load_tokenizer(str(folder)).chat_template is None
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"chat_template.jinja: byte 0: invalid UTF-8"):
        load_tokenizer(str(folder))


def chat_documents(
    tmp_path: Path, tokenizer: TokenizerFile, template: str, name: str = "c.jsonl"
) -> list[list[int]]:
    rows: list[dict[str, Any]] = [{"m": [{k: v for k, v in m.items() if k != "extra"} for m in CHAT]}] * 3
    path = write_rows(tmp_path / name, rows)
    records = RecordFormat(messages="m", chat_template=template, special_tokens=tokenizer.special_tokens)
    tokenize(
        options(tokenizer, [path], tmp_path / "chat", records=records, valid_fraction=0),
        restart=True,
        overwrite=True,
    )
    return documents(tmp_path / "chat-train")


@pytest.mark.parametrize("name", ["c.jsonl", "c.parquet"])
def test_special_tokens_of_templates_become_ids(tmp_path: Path, folder: Path, name: str) -> None:
    """As in apply_chat_template, also if a message contains the text of a special token."""
    tokenizer = load_tokenizer(str(folder))
    reference = AutoTokenizer.from_pretrained(folder)
    for template in (BUILT_IN["chatml"], WILD):
        found = chat_documents(tmp_path, tokenizer, template, name)
        chat = [{k: v for k, v in m.items() if k != "extra"} for m in CHAT]
        expected = reference.apply_chat_template(chat, chat_template=template, return_dict=False)
        # exactly one end-of-document token, also if the template writes one
        expected = expected if expected[-1] == tokenizer.eos_id else [*expected, tokenizer.eos_id]
        assert found == [expected] * 3


def test_control_pieces_in_conversations_and_documents(tmp_path: Path) -> None:
    """SentencePiece: </s> is a token where a template writes it, and text in a document."""
    tokenizer = load_tokenizer(str(train_sentencepiece(tmp_path)))
    encoder = make_encoder(tokenizer)
    (plain,) = encoder.encode(["ab</s>"], conversation=False)
    assert tokenizer.eos_id not in plain
    (chat,) = encoder.encode(["ab</s>cd"], conversation=True)
    (first, last) = encoder.encode(["ab", "cd"], conversation=False)
    assert chat == [*first, tokenizer.eos_id, *last]
    template = "{% for m in messages if m.role == 'user' %}{{ m.content + eos_token }}{% endfor %}"
    (found, *_) = chat_documents(tmp_path, tokenizer, template)
    assert found.count(tokenizer.eos_id) == 2 and found[-1] == tokenizer.eos_id


def test_text_that_looks_like_a_special_token(folder: Path) -> None:
    """tokenizer.json: it becomes its id everywhere, as with `Tokenizer.encode`."""
    tokenizer = load_tokenizer(str(folder))
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert tokenizer.eos_id == vocabulary["<|endoftext|>"]
    (ids,) = make_encoder(tokenizer).encode(["a<|endoftext|>b"], conversation=False)
    assert ids[1] == tokenizer.eos_id and len(ids) == 3
