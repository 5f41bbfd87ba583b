"""Chat completions of `hero serve`: invalid requests, failing templates, and the process that renders them."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from chat_runs import USER, client_of, create, without_template
from program import assert_exit_2, hero
from serving import Server, serving


@pytest.fixture(scope="module")
def bare(chat_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return without_template(chat_run, tmp_path_factory.mktemp("bare") / "tiny")


def test_errors(chat_client: openai.OpenAI) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"messages": []}, "messages", "expected a non-empty list"),
        ({"messages": [{"role": "bot", "content": "a"}]}, "messages[0].role", "system, developer, user"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "a string or a list of text parts"),
        ({"messages": [{"role": "user", "content": [image]}]}, "messages[0].content[0].type", "image_url"),
        ({"messages": [USER[0], "a"]}, "messages[1]", "an object with role and content"),
        ({"messages": [{**USER[0], "tool_calls": [1]}]}, "messages[0].tool_calls", "expected role, content"),
        ({"tools": []}, "tools", "found the field"),
        ({"response_format": {"type": "json_object"}}, "response_format", "found the field"),
        ({"extra_body": {"max_token": 3}}, "max_token", "did you mean max_tokens?"),
        ({"extra_body": {"prompt": "a"}}, "prompt", "found the field"),
        ({"max_tokens": 0}, "max_tokens", "from 1 to 4096"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens", "max_tokens = 3"),
        ({"max_tokens": 125}, "messages", "expected at most 128 in total"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
        ({"n": 129}, "n", "from 1 to 128"),
        ({"presence_penalty": 1}, "presence_penalty", "does not support"),
        ({"messages": [{"role": "user", "content": "def " * 2000}]}, "messages", "bytes"),
    ]
    for options, field, message in cases:
        with pytest.raises(openai.BadRequestError) as caught:
            create(chat_client, **options)
        assert caught.value.body["param"] == field, (options, caught.value.body)
        assert message in caught.value.body["message"]
    with pytest.raises(openai.NotFoundError, match="served model"):
        chat_client.chat.completions.create(model="other", messages=USER)


def test_metrics_count_chat_requests(chat_server: Server) -> None:
    name = 'hero_requests_total{endpoint="/v1/chat/completions",status="400"}'
    before = chat_server.metrics().get(name, 0)
    assert chat_server.request("/v1/chat/completions", {})[0] == 400
    assert chat_server.metrics()[name] == before + 1


def test_renderer_that_was_killed_starts_again(chat_server: Server, chat_client: openai.OpenAI) -> None:
    expected = create(chat_client, seed=1, max_tokens=5).choices
    children = (
        Path(f"/proc/{chat_server.process.pid}/task/{chat_server.process.pid}/children").read_text().split()
    )
    assert len(children) == 1 and "hero_moe.chat_renderer" in Path(f"/proc/{children[0]}/cmdline").read_text()
    os.kill(int(children[0]), signal.SIGKILL)
    time.sleep(0.2)
    assert create(chat_client, seed=1, max_tokens=5).choices == expected


def test_renderer_does_not_see_the_api_key(chat_run: Path) -> None:
    with serving(chat_run, "--api-key", "secret-7") as server:
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        assert b"HERO_API_KEY" not in Path(f"/proc/{children[0]}/environ").read_bytes()
        assert server.request("/v1/chat/completions", {"messages": USER})[0] == 401
        pid = int(children[0])
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists():  # it ends with the server
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_folder_without_a_template(bare: Path, tmp_path: Path) -> None:
    with serving(bare) as server:
        status, text, _ = server.request("/v1/chat/completions", {"messages": USER})
        error = json.loads(text)["error"]
        assert status == 400 and error["code"] == "no_chat_template" and "--chat-template" in error["message"]
        assert server.complete("def", max_tokens=1)["choices"]
        assert json.loads(server.request("/tokenizer_info")[1])["chat_template"] is None
    assert_exit_2(hero("chat", bare, input=b"a\n"), "found none in", "--chat-template")
    assert_exit_2(hero("chat", bare, "--chat-template", "chatm", input=b""), "chatm", "chatml, llama3")
    wrong = tmp_path / "wrong.jinja"
    wrong.write_text("{% for %}")
    assert_exit_2(hero("serve", bare, "--chat-template", wrong), "line 1", "wrong.jinja")
    (bare / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "chat_template": [{"name": "default", "template": "{{ messages[0].content }}"}],
                "eos_token": "<|endoftext|>",
            }
        )  # fmt: skip
    )
    with serving(bare) as server:
        assert create(client_of(server), max_tokens=1).usage.prompt_tokens == len(
            json.loads(server.request("/tokenize", {"prompt": "def index"})[1])["tokens"]
        )


def test_templates_that_fail(bare: Path, tmp_path: Path) -> None:
    """A rejection is an error of the request; the next request is served."""
    source = tmp_path / "own.jinja"
    source.write_text(
        "{% if messages[0].content == 'no' %}{{ raise_exception('Only questions, please') }}{% endif %}"
        "{% if messages[0].content == 'long' %}{% for i in range(99999) %}xxxxxxxxxxxx{% endfor %}{% endif %}"
        "{% if messages[0].content == 'slow' %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
        "{% endfor %}{% endif %}{{ messages[0].content }}"
    )
    with serving(bare, "--chat-template", source) as server:
        for content, status, message in (
            ("no", 400, "Only questions, please"),
            ("long", 400, "do not fit into the model's length"),
            ("slow", 500, "own.jinja"),
            ("yes", 200, "assistant"),
        ):
            found, text, _ = server.request(
                "/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "max_tokens": 2}
            )
            assert (found, message in text) == (status, True), text
