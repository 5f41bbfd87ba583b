"""Which tokens of a conversation are the assistant's, for loss masks (`train.loss_mask`).

Spans are ranges of characters of the rendered text. A template with `{% generation %}` blocks marks them itself.
For others they are found by role: an assistant's content and what follows it up to the end of its turn, without
the white space at the end, which includes an end-of-turn token but not the next header. The end-of-document
token, which is appended later, is at the position after the last character; it is the assistant's if the last
message is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import numpy as np

from hero_moe.data.chat import ChatTemplate
from hero_moe.data.errors import DataError

Span = tuple[int, int]

ADVICE = "mark the assistant's text with {% generation %}, or pass --no-loss-mask"
PROBE = "hero-moe-probe-4f1d"  # stands for a content in order to find where a template writes it
TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, ValueError, KeyError, IndexError, OverflowError)


def assistant_spans(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    special_tokens: Mapping[str, str],
    text: str,
) -> list[Span]:
    """The assistant's spans of `text`, which `template` rendered from `messages`. Raises `DataError` if the
    template does not tell where they are."""
    if template.marks_generation:
        spans = _marked(template, messages, special_tokens, text)
    else:
        spans = _by_role(template, messages, special_tokens, text)
    if messages and messages[-1]["role"] == "assistant":
        spans.append((len(text), len(text) + 1))
    return spans


def _marked(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    special_tokens: Mapping[str, str],
    text: str,
) -> list[Span]:
    number = 0
    while f"\ufdd0{number}" in text:
        number += 1
    begin, end = f"\ufdd0{number}(", f"\ufdd0{number})"
    parts = re.split(
        f"({re.escape(begin)}|{re.escape(end)})", template(messages, special_tokens, (begin, end))
    )
    spans, opened, at = [], [], 0
    for part in parts:
        if part == begin:
            opened.append(at)
        elif part == end:
            spans.append((opened.pop(), at))
        else:
            at += len(part)
    if "".join(part for part in parts if part not in (begin, end)) != text:
        raise DataError(
            "chat template: it changes the text of a {% generation %} block after the block, "
            "expected a block that is written as it is (--no-loss-mask writes no loss mask)"
        )
    return spans


def _by_role(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    special_tokens: Mapping[str, str],
    text: str,
) -> list[Span]:
    spans = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = messages[:number]
        try:
            turns = template([*before, message], special_tokens)
            probed = template([*before, {**message, "content": PROBE}], special_tokens)
        except TEMPLATE_ERRORS as error:
            raise DataError(
                f"chat template: it rejects the first {number + 1} of {len(messages)} messages ({error}), "
                f"so that the assistant's tokens are unknown; {ADVICE}"
            ) from error
        if not text.startswith(turns):
            raise DataError(
                f"chat template: it renders the first {number + 1} of {len(messages)} messages differently if "
                f"others follow, so that the assistant's tokens are unknown; {ADVICE}"
            )
        if probed == turns:
            continue  # the template leaves out the content
        begin = probed.rfind(PROBE)
        tail = probed[begin + len(PROBE) :]
        if begin < 0 or not turns.startswith(probed[:begin]) or not turns.endswith(tail):
            raise DataError(
                f"chat template: what it writes around the content of message {number} depends on the content, "
                f"so that the assistant's tokens are unknown; {ADVICE}"
            )
        end = len(turns) - len(tail) + len(tail.rstrip())
        if end > begin:
            spans.append((begin, end))
    return spans


def trained_tokens(offsets: Sequence[Span], spans: Sequence[Span], length: int) -> np.ndarray:
    """uint8 [tokens]: 1 for tokens with a character in one of the spans of a text of `length` characters.

    `offsets` are the characters of each token. A token of none belongs to the next one, as the first bytes of a
    character do in SentencePiece; characters that no token has belong to the next one too."""
    inside = np.zeros(length + 1, np.int64)
    for begin, end in spans:
        inside[begin : min(end, length)] = 1
    before = np.concatenate(([0], np.cumsum(inside)))  # trained characters before each position
    begins, ends = np.array(offsets, np.int64).reshape(-1, 2).T
    if len(ends):
        begins = np.minimum(begins, np.concatenate(([0], np.maximum.accumulate(ends)[:-1])))
    trained = (before[ends] > before[begins]).astype(np.uint8)
    for token in np.flatnonzero(begins == ends)[::-1]:
        trained[token] = trained[token + 1] if token + 1 < len(trained) else 0
    return trained
