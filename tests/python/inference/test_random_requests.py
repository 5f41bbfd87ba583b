"""Random completion requests, sent at once: every response equals what the fields say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from random_cases import Case, property_tests, reproduce
from request_reference import (
    SEEDS,
    SHARED,
    TEXTS,
    VOCABULARY,
    Choice,
    Served,
    assert_close,
    expected_choice,
    prompt_ids,
    send_at_once,
    served,
    some_of,
)
from serving import events
from strategies import DrawFn, option


def prompts() -> st.SearchStrategy[Any]:
    ids = st.lists(st.integers(3, VOCABULARY - 1), min_size=1, max_size=40)
    texts = st.sampled_from(TEXTS)
    return st.one_of(
        texts, st.lists(texts, min_size=1, max_size=3), ids, st.lists(ids, min_size=1, max_size=3)
    )


@st.composite
def requests(draw: DrawFn) -> dict[str, Any]:
    body: dict[str, Any] = {"prompt": draw(prompts()), "seed": draw(SEEDS)}
    body |= some_of(draw, SHARED | {"logprobs": st.integers(0, 20), "echo": st.booleans()})
    if body.get("echo") and draw(option(False, False, True)):
        body["max_tokens"] = 0
    return body


def cases() -> st.SearchStrategy[Case]:
    return st.fixed_dictionaries({"requests": st.lists(requests(), min_size=1, max_size=5)})


def received(body: dict[str, Any], text: str) -> tuple[list[Choice], dict[str, int] | None]:
    """The choices of a response, assembled from its chunks if it is a stream, and its usage."""
    parts = events(text) if body.get("stream") else [json.loads(text)]
    found: dict[int, Choice] = {}
    for part in parts:
        for choice in part["choices"]:
            own = found.setdefault(choice["index"], Choice())
            assert own.finish_reason is None
            own.text += choice["text"]
            own.finish_reason = choice["finish_reason"]
            if logs := choice["logprobs"]:
                own.logprobs += logs["token_logprobs"]
                own.highest += [top and max(top.values()) for top in logs["top_logprobs"]]
    return [found[index] for index in range(len(found))], parts[-1].get("usage")


def check_response(of: Served, body: dict[str, Any], text: str) -> None:
    choices, usage = received(body, text)
    n = body.get("n") or 1
    asked = prompt_ids(of, body["prompt"])
    want = [expected_choice(of, body, ids, number) for ids in asked for number in range(n)]
    assert len(choices) == len(want)
    for one, expected in zip(choices, want):
        assert (one.text, one.finish_reason) == (expected.text, expected.finish_reason)
        assert_close(one.logprobs, expected.logprobs)
        assert_close(one.highest, expected.highest if body.get("logprobs") else expected.logprobs)
    if not body.get("stream"):
        sampled = sum(choice.tokens for choice in want)
        given = sum(len(ids) for ids in asked)
        counts = {"prompt_tokens": given, "completion_tokens": sampled, "total_tokens": given + sampled}
        assert usage == counts


def check(case: Case, folder: Path) -> None:
    of = served()
    send_at_once(of, "/v1/completions", case["requests"], lambda body, text: check_response(of, body, text))


test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    reproduce(check)
