"""Chat completions of `hero serve` with the openai client."""

from __future__ import annotations

import json
from typing import Any

import openai

from chat_runs import USER, chatml, create
from serving import Server, events


def test_answers_equal_completions_of_the_rendered_prompt(chat_client: openai.OpenAI) -> None:
    conversation = [{"role": "system", "content": "Be brief."}, *USER, {"role": "assistant", "content": "路由"},
                    {"role": "user", "content": "return\n"}]  # fmt: skip
    for messages in (USER, conversation):
        for seed in range(6):
            options: dict[str, Any] = {"seed": seed, "max_tokens": 40}
            prompt = chatml(messages)
            expected = chat_client.completions.create(
                model="tiny", prompt=prompt, stop="<|im_end|>", logprobs=2, **options
            )
            found = create(chat_client, messages, logprobs=True, top_logprobs=2, **options)
            ids = found.choices[0].logprobs.content
            # The completion continues after <|im_end|>, whose text is not shown.
            logs = expected.choices[0].logprobs
            assert [token.token for token in ids] == logs.tokens[: len(ids)]
            assert [token.logprob for token in ids] == logs.token_logprobs[: len(ids)]
            for token, top in zip(ids, logs.top_logprobs):
                assert {t.token: t.logprob for t in token.top_logprobs}.items() <= top.items()
                text = bytes(token.bytes or b"").decode(errors="replace")
                assert token.bytes is None or token.token.startswith("bytes:") or text == token.token
            assert found.usage.prompt_tokens == expected.usage.prompt_tokens
            choice = found.choices[0]
            assert choice.message.role == "assistant" and found.object == "chat.completion"
            assert expected.choices[0].text.startswith(choice.message.content)
            if choice.finish_reason == "length":
                assert len(ids) == 40 and choice.message.content == expected.choices[0].text
            else:
                assert choice.finish_reason == "stop"
                assert ids[-1].token in ("<|im_end|>", "<|endoftext|>") and ids[-1].bytes is None
                assert "<|im_end|>" not in choice.message.content


def test_answers_end_at_the_end_of_turn(chat_client: openai.OpenAI) -> None:
    """With ignore_eos the tokens are the same and generation continues."""
    ended = 0
    for seed in range(10):
        found = create(chat_client, seed=seed, max_tokens=40, logprobs=True).choices[0]
        more = create(chat_client, seed=seed, max_tokens=40, logprobs=True, extra_body={"ignore_eos": True})
        tokens = [token.token for token in found.logprobs.content]
        all_tokens = [token.token for token in more.choices[0].logprobs.content]
        assert tokens == all_tokens[: len(tokens)] and len(all_tokens) == 40
        assert more.choices[0].finish_reason == "length"
        ends = [i for i, token in enumerate(all_tokens) if token in ("<|im_end|>", "<|endoftext|>")]
        assert len(tokens) == (ends[0] + 1 if ends else 40)
        ended += bool(ends)
    assert ended >= 5


def test_streams_concatenate_to_the_whole_answer(chat_client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"n": 3, "seed": 5, "max_tokens": 30, "temperature": 3}
    whole = create(chat_client, **options)
    pieces, finish, roles, usage = [""] * 3, [None] * 3, [None] * 3, None
    for chunk in create(chat_client, stream=True, stream_options={"include_usage": True}, **options):
        assert usage is None and chunk.object == "chat.completion.chunk"
        usage = chunk.usage
        for choice in chunk.choices:
            assert finish[choice.index] is None
            if roles[choice.index] is None:
                assert choice.delta.role == "assistant"
            else:
                assert choice.delta.role is None
            roles[choice.index] = "assistant"
            pieces[choice.index] += choice.delta.content or ""
            finish[choice.index] = choice.finish_reason
    assert pieces == [choice.message.content for choice in whole.choices]
    assert finish == [choice.finish_reason for choice in whole.choices] and usage == whole.usage
    assert len(set(pieces)) == 3


def test_raw_stream(chat_server: Server) -> None:
    body = {"messages": USER, "stream": True, "max_tokens": 5, "seed": 1, "logprobs": True}
    status, text, headers = chat_server.request("/v1/chat/completions", body)
    assert status == 200 and headers["Content-Type"] == "text/event-stream"
    chunks = events(text)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")
    assert len({chunk["id"] for chunk in chunks}) == 1 and chunks[0]["id"].startswith("chatcmpl-")
    tokens = sum(len(chunk["choices"][0]["logprobs"]["content"]) for chunk in chunks)
    assert tokens == server_tokens(chat_server, body)


def server_tokens(server: Server, body: dict[str, Any]) -> int:
    text = server.request("/v1/chat/completions", body | {"stream": False})[1]
    return json.loads(text)["usage"]["completion_tokens"]


def test_stop_strings(chat_client: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "seed": 3,
        "max_tokens": 40,
        "temperature": 2,
        "extra_body": {"ignore_eos": True},
    }
    text = create(chat_client, **options).choices[0].message.content
    stop = [text[12:15], text[6:8], "nowhere"]
    expected = min((text[: text.find(part)] for part in stop[:2]), key=len)
    for stream in (False, True):
        answer = create(chat_client, stop=stop, stream=stream, **options)
        if stream:
            found = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
        else:
            assert answer.choices[0].finish_reason == "stop"
            found = answer.choices[0].message.content
        assert found == expected


def test_multi_turn_conversation(chat_client: openai.OpenAI) -> None:
    """The messages of answers can be sent back as they are."""
    messages: list[Any] = [{"role": "system", "content": "Be brief."}]
    plain: list[dict[str, Any]] = list(messages)
    for turn in range(3):
        messages.append({"role": "user", "content": f"index {turn}"})
        plain.append({"role": "user", "content": f"index {turn}"})
        answer = create(chat_client, messages, seed=turn, max_tokens=8)
        count = chat_client.completions.create(
            model="tiny", prompt=chatml(plain), max_tokens=1
        ).usage.prompt_tokens
        assert answer.usage.prompt_tokens == count
        messages.append(answer.choices[0].message)
        plain.append({"role": "assistant", "content": answer.choices[0].message.content})


def test_text_parts_and_names(chat_client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "def"}, {"type": "text", "text": "index"}]
    found = create(chat_client, [{"role": "user", "content": parts, "name": "ada"}], seed=1, max_tokens=10)
    expected = create(chat_client, [{"role": "user", "content": "def\nindex"}], seed=1, max_tokens=10)
    assert found.choices == expected.choices
    for role in ("developer", "tool"):
        create(chat_client, [{"role": role, "content": "a"}], max_tokens=1)


def test_seeds_and_default_length(chat_client: openai.OpenAI) -> None:
    """Without max_tokens an answer may fill the model's length."""
    texts = [create(chat_client, seed=seed, temperature=3).choices[0].message.content for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    found = create(chat_client, seed=1, extra_body={"ignore_eos": True})
    assert found.usage.total_tokens == 128 and found.choices[0].finish_reason == "length"
    for name in ("max_tokens", "max_completion_tokens"):
        assert create(chat_client, extra_body={"ignore_eos": True}, **{name: 3}).usage.completion_tokens == 3
