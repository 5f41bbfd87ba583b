"""Conversations as text: chat templates in Jinja, rendered as `transformers` renders them.

Templates run in an immutable sandbox with `raise_exception`, `strftime_now`, the filter `tojson`, `break` and
`continue`, and `{% generation %}` blocks, whose contents are kept and can be marked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hero_moe.data.errors import DataError

# Each ends messages with the end-of-turn token of its family; llama3 and deepseek begin with bos_token.
BUILT_IN = {
    "chatml": (
        "{%- for message in messages -%}\n"
        "{{ '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}\n"
        "{%- endfor -%}"
    ),
    "llama3": (
        "{{ bos_token | default('', true) }}\n"
        "{%- for message in messages -%}\n"
        "{{ '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\\n\\n' }}\n"
        "{{- message.content | trim ~ '<|eot_id|>' }}\n"
        "{%- endfor -%}"
    ),
    "deepseek": (
        "{{ bos_token | default('', true) }}\n"
        "{%- for message in messages -%}\n"
        "{%- if message.role == 'system' -%}\n"
        "{{ ('\\n\\n' if not loop.first else '') ~ message.content }}\n"
        "{%- elif message.role == 'user' -%}\n"
        "{{ '<｜User｜>' ~ message.content }}\n"
        "{%- elif message.role == 'assistant' -%}\n"
        "{{ '<｜Assistant｜>' ~ message.content ~ '<｜end▁of▁sentence｜>' }}\n"
        "{%- else -%}\n"
        "{{ raise_exception('the deepseek template has no role ' ~ message.role) }}\n"
        "{%- endif -%}\n"
        "{%- endfor -%}"
    ),
    "plain": (
        "{%- for message in messages -%}\n"
        "{{ '\\n\\n' if not loop.first else '' }}\n"
        "{{- message.role | capitalize ~ ': ' ~ message.content | trim }}\n"
        "{%- endfor -%}"
    ),
}


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text: its contents between the values of two variables."""

    tags = {"generation"}
    begin, end = "_generation_begin", "_generation_end"

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.found = False

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        line = next(parser.stream).lineno
        self.found = True
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        begin, end = (
            jinja2.nodes.Output([jinja2.nodes.Name(name, "load")], lineno=line)
            for name in (self.begin, self.end)
        )
        return [begin, *body, end]


class ChatTemplate:
    """A compiled template; `marks_generation`: it has `{% generation %}` blocks."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise DataError(f"chat template: line {error.lineno}: {error.message}, expected Jinja") from error
        generation = environment.extensions[_Generation.identifier]
        assert isinstance(generation, _Generation)
        self.marks_generation = generation.found

    def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        special_tokens: Mapping[str, str],
        marks: tuple[str, str] = ("", ""),
    ) -> str:
        """The text of a conversation, given the special tokens by name, with `marks` around the contents of
        `{% generation %}` blocks. Raises `jinja2.TemplateError` if the template rejects the messages."""
        return self._template.render(
            messages=messages,
            tools=[],
            documents=None,
            add_generation_prompt=False,
            **special_tokens,
            **dict(zip((_Generation.begin, _Generation.end), marks)),
        )


def compile_template(source: str) -> ChatTemplate:
    """Raises `DataError` for invalid Jinja."""
    return ChatTemplate(source)


def find_template(name: str, tokenizer_template: str | None) -> str:
    """The template source for a `--chat-template` value: a built-in name, "tokenizer" (uses
    `tokenizer_template`), a file, or the template itself (anything with a `{`)."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if name == "tokenizer":
        if tokenizer_template is None:
            raise DataError(
                "--chat-template tokenizer: the tokenizer has no chat_template in its tokenizer_config.json"
            )
        return tokenizer_template
    if "{" in name:
        return name
    if not os.path.isfile(name):
        raise DataError(
            f"--chat-template {name}: no such file, expected a file, {', '.join(BUILT_IN)} or tokenizer"
        )
    with open(name, encoding="utf-8") as file:
        return file.read()


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
