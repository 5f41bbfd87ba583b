"""Records to text: a field, fields joined by a template, or a conversation.

A field is a column or key; `a.b` reaches into structs (a column that is itself called "a.b" comes first).
Records without usable text raise `UnusableRecord` with the reason; the caller counts or rejects them."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from hero_moe.data.chat import ChatTemplate, compile_template
from hero_moe.data.errors import DataError
from hero_moe.data.loss_mask import TEMPLATE_ERRORS, Span, assistant_spans

ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "observation": "tool",
}


class UnusableRecord(Exception):
    """A record without text. `kind`: "missing" (no such field, or null), "wrong" (wrong type, or rejected by
    the chat template), "empty"."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind = kind


@dataclass(frozen=True)
class RecordFormat:
    """How a record becomes text: exactly one of `text_key`, `template`, `messages`, and `prompt` with
    `response`.

    `template` names fields in braces ("{problem}\\n\\n{solution}"). `messages` is a list of {role, content}
    or {from, value}. `chat_template` is the source of a Jinja template for `messages` and for pairs;
    `special_tokens` are its variables (bos_token, eos_token, ...). `loss_mask`: with the assistant's spans."""

    text_key: str | None = None
    template: str | None = None
    messages: str | None = None
    prompt: str | None = None
    response: str | None = None
    chat_template: str | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    loss_mask: bool = False

    def __post_init__(self) -> None:
        if (self.prompt is None) != (self.response is None):
            raise DataError("--prompt and --response: found only one of them, expected both")
        sources = [
            key for key in ("text_key", "template", "messages", "prompt") if getattr(self, key) is not None
        ]
        if len(sources) != 1:
            raise DataError(
                f"found {len(sources)} ways to read records, "
                "expected one of --text-key, --template, --messages, --prompt"
            )
        if self.conversation and self.chat_template is None:
            raise DataError("conversations need a chat template")
        _ = self._fields  # reports an invalid template immediately
        if self.loss_mask and not self.conversation:
            raise DataError("a loss mask needs conversations")
        if self.conversation:
            _ = self._render

    @property
    def conversation(self) -> bool:
        return self.messages is not None or self.prompt is not None

    @cached_property
    def _template_parts(self) -> list[tuple[str, str | None]]:
        """The template as (text, field that follows it)."""
        parts = []
        try:
            for text, name, form, conversion in string.Formatter().parse(self.template or ""):
                if name == "" or form or conversion:
                    raise ValueError("expected {field} only")
                parts.append((text, name))
        except ValueError as error:
            raise DataError(
                f"--template {self.template!r}: {error}; write a literal brace as {{{{ or }}}}"
            ) from error
        if not any(name for _, name in parts):
            raise DataError(f"--template {self.template!r}: found no field, expected at least one in braces")
        return parts

    @cached_property
    def _fields(self) -> list[str]:
        if self.template is not None:
            return [name for _, name in self._template_parts if name is not None]
        return [
            name for name in (self.text_key, self.messages, self.prompt, self.response) if name is not None
        ]

    @cached_property
    def _render(self) -> ChatTemplate:
        return compile_template(self.chat_template or "")

    def columns(self, schema: pa.Schema, path: str) -> list[str]:
        """The columns to read from a file with this schema; struct fields as dotted paths. Raises `DataError`
        if a column is missing or has a type without text."""
        return [
            _column(schema, name, path, self.messages is not None) for name in dict.fromkeys(self._fields)
        ]

    def text(self, record: Mapping[str, Any]) -> str:
        """The text of a record. Raises `UnusableRecord`."""
        return self.text_and_spans(record)[0]

    def text_and_spans(self, record: Mapping[str, Any]) -> tuple[str, list[Span]]:
        """The text of a record, with the assistant's spans if there is a `loss_mask`. Raises `UnusableRecord`,
        and `DataError` if the chat template does not tell where the spans are."""
        spans: list[Span] = []
        if self.text_key is not None:
            text = _string(record, self.text_key)
        elif self.template is not None:
            values = {name: _string(record, name) for name in dict.fromkeys(self._fields)}
            if not any(values.values()):
                raise UnusableRecord("empty", "all fields are empty, expected text")
            text = "".join(part + (values[name] if name else "") for part, name in self._template_parts)
        elif self.messages is not None:
            text, spans = self._conversation(_messages(record, self.messages))
        else:
            user, assistant = _string(record, self.prompt or ""), _string(record, self.response or "")
            if not assistant:
                raise UnusableRecord("empty", f'field "{self.response}" is empty, expected text')
            text, spans = self._conversation(
                [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
            )
        if not text:
            raise UnusableRecord("empty", "the text is empty")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UnusableRecord(
                "wrong", "the text contains an unpaired surrogate, expected Unicode text"
            ) from error
        return text, spans

    def _conversation(self, messages: list[dict[str, Any]]) -> tuple[str, list[Span]]:
        try:
            text = self._render(messages, self.special_tokens)
        except TEMPLATE_ERRORS as error:
            raise UnusableRecord("wrong", f"the chat template rejects the conversation ({error})") from error
        if not self.loss_mask:
            return text, []
        return text, assistant_spans(self._render, messages, self.special_tokens, text)


def _column(schema: pa.Schema, name: str, path: str, messages: bool) -> str:
    parts = [name] if name in schema.names else name.split(".")
    names: list[str] = list(schema.names)
    kind: Any = None
    for depth, part in enumerate(parts):
        if part not in names:
            at = f' in "{".".join(parts[:depth])}"' if depth else ""
            raise DataError(f'{path}: no column "{part}"{at}, found {", ".join(names) or "none"}')
        kind = schema.field(part).type if depth == 0 else kind.field(part).type
        names = [kind.field(i).name for i in range(kind.num_fields)] if pa.types.is_struct(kind) else []
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if messages:
        item: Any = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else None
        struct = item is not None and pa.types.is_struct(item)
        keys: set[str] = {item.field(i).name for i in range(item.num_fields)} if struct else set()
        if not keys >= {"role", "content"} and not keys >= {"from", "value"} and not pa.types.is_null(kind):
            raise DataError(
                f'{path}: column "{name}" is {kind}, expected a list of role and content, or from and value'
            )
    elif not _is_text(kind):
        raise DataError(f'{path}: column "{name}" is {kind}, expected a string')
    return ".".join(parts)


def _is_text(kind: pa.DataType) -> bool:
    return any(
        check(kind)
        for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    )


def _value(record: Mapping[str, Any], name: str) -> Any:
    if name in record:
        value = record[name]
    else:
        value = record
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if value is None:
        found = ", ".join(f'"{key}"' for key in record) or "no field"
        raise UnusableRecord(
            "missing", f'field "{name}" is null' if name in record else f'no field "{name}", found {found}'
        )
    return value


def _string(record: Mapping[str, Any], name: str) -> str:
    value = _value(record, name)
    if not isinstance(value, str):
        raise UnusableRecord("wrong", f'field "{name}" is {_kind(value)}, expected a string')
    return value


def _messages(record: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = _value(record, name)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise UnusableRecord("wrong", f'field "{name}" is {_kind(value)}, expected a list of messages')
    if not value:
        raise UnusableRecord("empty", f'field "{name}" contains no messages')
    messages = []
    for number, message in enumerate(value):
        at = f'message {number} of "{name}"'
        if not isinstance(message, Mapping):
            raise UnusableRecord("wrong", f"{at} is {_kind(message)}, expected role and content")
        message = {key: part for key, part in message.items() if part is not None}
        role = message.pop("role", message.pop("from", None))
        content = message.pop("content", message.pop("value", None))
        if not isinstance(role, str) or not isinstance(content, str):
            raise UnusableRecord("wrong", f"{at}: expected strings role and content, or from and value")
        messages.append({"role": ROLES.get(role, role), "content": content, **message})
    return messages


def _kind(value: Any) -> str:
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), type(value).__name__)
