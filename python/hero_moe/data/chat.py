"""Conversations as text: chat templates in Jinja, rendered as `transformers` renders them.

Templates run in an immutable sandbox with `raise_exception`, `strftime_now`, the filter `tojson`, `break` and
`continue`, and `{% generation %}` blocks, whose contents are kept and can be marked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from hero_moe.data.errors import DataError, decode_utf8

# Each ends messages with the end-of-turn token of its family; llama3 and deepseek begin with bos_token. With
# add_generation_prompt they end with the beginning of an assistant's message.
BUILT_IN = {
    "chatml": (
        "{%- for message in messages -%}\n"
        "{{ '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}\n"
        "{%- endfor -%}\n"
        "{{ '<|im_start|>assistant\\n' if add_generation_prompt else '' }}"
    ),
    "llama3": (
        "{{ bos_token | default('', true) }}\n"
        "{%- for message in messages -%}\n"
        "{{ '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\\n\\n' }}\n"
        "{{- message.content | trim ~ '<|eot_id|>' }}\n"
        "{%- endfor -%}\n"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' if add_generation_prompt else '' }}"
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
        "{%- endfor -%}\n"
        "{{ '<｜Assistant｜>' if add_generation_prompt else '' }}"
    ),
    "plain": (
        "{%- for message in messages -%}\n"
        "{{ '\\n\\n' if not loop.first else '' }}\n"
        "{{- message.role | capitalize ~ ': ' ~ message.content | trim }}\n"
        "{%- endfor -%}\n"
        "{{ '\\n\\nAssistant:' if add_generation_prompt else '' }}"
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
        environment.globals["namespace"] = _Namespace
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
        *,
        add_generation_prompt: bool = False,
    ) -> str:
        """The text of a conversation, given the special tokens by name, with `marks` around the contents of
        `{% generation %}` blocks; with `add_generation_prompt`, up to the beginning of the next assistant's
        message. Raises `jinja2.TemplateError` if the template rejects the messages."""
        return "".join(self.parts(messages, special_tokens, marks, add_generation_prompt))

    def parts(
        self,
        messages: Sequence[Mapping[str, Any]],
        special_tokens: Mapping[str, str],
        marks: tuple[str, str] = ("", ""),
        add_generation_prompt: bool = False,
    ) -> Iterator[str]:
        """The same text in parts, while the template runs."""
        return self._template.generate(
            messages=messages,
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
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
    try:
        with open(name, "rb") as file:
            content = file.read()
    except OSError as error:
        raise DataError(f"--chat-template {name}: cannot be read ({error.strerror})") from error
    return decode_utf8(content, f"--chat-template {name}")


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


class _Namespace(Namespace):
    """`namespace` without names that begin with an underscore: its attributes bypass the sandbox's checks."""

    def __init__(*args: Any, **attributes: Any) -> None:  # a template may pass any name, also `self`
        self, *rest = args
        values = dict(*rest, **attributes)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no attribute {name!r}: names do not begin with an underscore")


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
