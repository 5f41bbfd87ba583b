"""Random chat requests with several templates, sent at once: every answer continues the prompt that the template writes,
and ends where the template ends an answer."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from random_cases import Case, property_tests, reproduce
from request_reference import (
    SEEDS,
    SHARED,
    TEXTS,
    Choice,
    Served,
    assert_close,
    expected_choice,
    send_at_once,
    served,
    some_of,
    trained_model,
)
from serving import events
from strategies import DrawFn, option

# A template whose end of an answer the model often writes.
CALLS = """{%- for message in messages -%}
{{ message.role ~ '(' ~ message.content ~ '):\n' }}
{%- endfor -%}
{{ 'assistant(' if add_generation_prompt else '' }}"""
# Name of a template: the text before the content of a role, the end of a message, what ends an answer.
TEMPLATES = {
    "calls": ("{}(", "):\n", "):"),
    "chatml": ("<|im_start|>{}\n", "<|im_end|>\n", "<|im_end|>"),
    "plain": ("{}: ", "\n\n", "\n\nUser:"),
}
POSITIONS = 128  # of the model
LONGEST = 24  # new tokens, with which every prompt here fits


@functools.cache
def template_file() -> str:
    file = trained_model()[0].with_name("calls.jinja")  # in a folder that is removed at exit
    file.write_text(CALLS)
    return str(file)


def serving_template(name: str) -> Served:
    return served("--chat-template", template_file() if name == "calls" else name)


def rendered(name: str, messages: list[dict[str, str]]) -> str:
    before, after, _ = TEMPLATES[name]
    text = ""
    for message in messages:
        role, content = message["role"], message["content"]
        if name == "plain":
            role, content = role.capitalize(), content.strip()
        text += before.format(role) + content + after
    return text + (before.format("assistant") if name != "plain" else "Assistant:")


@st.composite
def requests(draw: DrawFn) -> dict[str, Any]:
    content = st.sampled_from(TEXTS)
    messages = [{"role": "user", "content": draw(content)}]
    if draw(st.booleans()):
        messages.insert(0, {"role": draw(option("system", "assistant")), "content": draw(content)})
    body: dict[str, Any] = {"messages": messages, "seed": draw(SEEDS)}
    limits = {name: st.integers(1, LONGEST) for name in ("max_tokens", "max_completion_tokens")}
    body |= some_of(draw, SHARED | limits | {"logprobs": st.booleans()})
    if body.get("max_tokens") and body.get("max_completion_tokens"):
        body["max_completion_tokens"] = body["max_tokens"]
    if body.get("logprobs"):
        body |= some_of(draw, {"top_logprobs": st.integers(0, 20)})
    return body


def cases() -> st.SearchStrategy[Case]:
    return st.fixed_dictionaries(
        {"template": option(*TEMPLATES), "requests": st.lists(requests(), min_size=1, max_size=5)}
    )


def received(body: dict[str, Any], text: str) -> tuple[list[Choice], dict[str, int] | None]:
    """The answers of a response, assembled from its chunks if it is a stream, and its usage."""
    parts = events(text) if body.get("stream") else [json.loads(text)]
    found: dict[int, Choice] = {}
    for part in parts:
        for choice in part["choices"]:
            begun = choice["index"] in found
            own = found.setdefault(choice["index"], Choice())
            assert own.finish_reason is None
            message = choice["delta" if body.get("stream") else "message"]
            assert message.get("role") == (None if begun else "assistant")
            own.text += message.get("content") or ""
            own.finish_reason = choice["finish_reason"]
            for token in (choice["logprobs"] or {"content": []})["content"]:
                own.logprobs.append(token["logprob"])
                own.highest += [max(top["logprob"] for top in token["top_logprobs"][:1] or [token])]
    return [found[index] for index in range(len(found))], parts[-1].get("usage")


def check_response(of: Served, template: str, body: dict[str, Any], text: str) -> None:
    prompt = of.tokenizer.encode(rendered(template, body["messages"]))
    asked = body.get("max_tokens") or body.get("max_completion_tokens") or POSITIONS - len(prompt)
    as_completion = body | {"max_tokens": asked, "logprobs": 0 if body.get("logprobs") else None}
    ends = (TEMPLATES[template][2],)
    choices, usage = received(body, text)
    want = [expected_choice(of, as_completion, prompt, n, ends) for n in range(body.get("n") or 1)]
    assert len(choices) == len(want)
    for one, expected in zip(choices, want):
        assert (one.text, one.finish_reason) == (expected.text, expected.finish_reason)
        assert_close(one.logprobs, expected.logprobs)
        if body.get("top_logprobs"):
            assert_close(one.highest, expected.highest)
    if not body.get("stream"):
        sampled = sum(choice.tokens for choice in want)
        given = len(prompt)
        assert usage == {
            "prompt_tokens": given,
            "completion_tokens": sampled,
            "total_tokens": given + sampled,
        }


def check(case: Case, folder: Path) -> None:
    of = serving_template(case["template"])
    send_at_once(
        of,
        "/v1/chat/completions",
        case["requests"],
        lambda body, text: check_response(of, case["template"], body, text),
    )


test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    reproduce(check)
