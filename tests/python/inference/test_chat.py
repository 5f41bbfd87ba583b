"""Chat completions of `hero serve` with the openai client, and `hero chat`."""

from __future__ import annotations

import json
import os
import pty
import random
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from chat_templates import SPECIAL, TEMPLATES, conversations
from data_files import train_bpe, train_sentencepiece, write_rows
from hero_moe.data import compile_template, load_tokenizer
from hero_moe.data.commands import main as data_main
from hero_moe.data.encoders import make_encoder
from program import ENVIRONMENT, PROGRAM, assert_exit_2, checkpoint, hero, run_hero, training
from serving import Server, events, serving

USER = [{"role": "user", "content": "def index"}]


def write_chats(path: Path) -> Path:
    """Conversations with short answers."""
    rng = random.Random(3)
    words = ["def", "index", "return", "路由", "🦆", "history"]
    rows = [
        {"m": [{"role": role, "content": " ".join(rng.choices(words, k=rng.randint(1, 3)))}
               for role in ("user", "assistant")]}
        for _ in range(300)
    ]  # fmt: skip
    return write_rows(path, rows)


def trained_on_chats(folder: Path, tokenizer: Path, template: str, **more: Any) -> Path:
    """A run in fp64 whose answers are short, on data with a chat template."""
    chats = write_chats(folder / "chats.jsonl")
    data = folder / "data" / "chats"
    words = ["tokenize", "--input", chats, "--messages", "m", "--chat-template", template]
    assert data_main([*map(str, [*words, "--tokenizer", tokenizer, "--out", data, "--workers", 1])]) == 0
    given = {"train.dtype": "fp64", "train.steps": 40, "optim.lr": 5e-3, "optim.schedule": "constant", "train.loss_mask": True,
             "train.pack": "best_fit", "train.sequence": 128, "train.global_batch": 4, "train.micro_batch": 4}  # fmt: skip
    run_hero(*training(folder / "tiny", data, given | more))
    return folder / "tiny"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    return trained_on_chats(folder, train_bpe(folder / "bpe"), "chatml")


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Server]:
    with serving(run) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return client_of(server)


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def create(client: openai.OpenAI, messages: Any = USER, **options: Any) -> Any:
    return client.chat.completions.create(model="tiny", messages=messages, **options)


def chatml(messages: list[dict[str, Any]]) -> str:
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return text + "<|im_start|>assistant\n"


def test_answers_equal_completions_of_the_rendered_prompt(client: openai.OpenAI) -> None:
    conversation = [{"role": "system", "content": "Be brief."}, *USER, {"role": "assistant", "content": "路由"},
                    {"role": "user", "content": "return\n"}]  # fmt: skip
    for messages in (USER, conversation):
        for seed in range(6):
            options: dict[str, Any] = {"seed": seed, "max_tokens": 40}
            prompt = chatml(messages)
            expected = client.completions.create(
                model="tiny", prompt=prompt, stop="<|im_end|>", logprobs=2, **options
            )
            found = create(client, messages, logprobs=True, top_logprobs=2, **options)
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


def test_answers_end_at_the_end_of_turn(client: openai.OpenAI) -> None:
    """With ignore_eos the tokens are the same and generation continues."""
    ended = 0
    for seed in range(10):
        found = create(client, seed=seed, max_tokens=40, logprobs=True).choices[0]
        more = create(client, seed=seed, max_tokens=40, logprobs=True, extra_body={"ignore_eos": True})
        tokens = [token.token for token in found.logprobs.content]
        all_tokens = [token.token for token in more.choices[0].logprobs.content]
        assert tokens == all_tokens[: len(tokens)] and len(all_tokens) == 40
        assert more.choices[0].finish_reason == "length"
        ends = [i for i, token in enumerate(all_tokens) if token in ("<|im_end|>", "<|endoftext|>")]
        assert len(tokens) == (ends[0] + 1 if ends else 40)
        ended += bool(ends)
    assert ended >= 5


def test_streams_concatenate_to_the_whole_answer(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"n": 3, "seed": 5, "max_tokens": 30, "temperature": 3}
    whole = create(client, **options)
    pieces, finish, roles, usage = [""] * 3, [None] * 3, [None] * 3, None
    for chunk in create(client, stream=True, stream_options={"include_usage": True}, **options):
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


def test_raw_stream(server: Server) -> None:
    body = {"messages": USER, "stream": True, "max_tokens": 5, "seed": 1, "logprobs": True}
    status, text, headers = server.request("/v1/chat/completions", body)
    assert status == 200 and headers["Content-Type"] == "text/event-stream"
    chunks = events(text)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")
    assert len({chunk["id"] for chunk in chunks}) == 1 and chunks[0]["id"].startswith("chatcmpl-")
    tokens = sum(len(chunk["choices"][0]["logprobs"]["content"]) for chunk in chunks)
    assert tokens == server_tokens(server, body)


def server_tokens(server: Server, body: dict[str, Any]) -> int:
    text = server.request("/v1/chat/completions", body | {"stream": False})[1]
    return json.loads(text)["usage"]["completion_tokens"]


def test_stop_strings(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "seed": 3,
        "max_tokens": 40,
        "temperature": 2,
        "extra_body": {"ignore_eos": True},
    }
    text = create(client, **options).choices[0].message.content
    stop = [text[12:15], text[6:8], "nowhere"]
    expected = min((text[: text.find(part)] for part in stop[:2]), key=len)
    for stream in (False, True):
        answer = create(client, stop=stop, stream=stream, **options)
        if stream:
            found = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
        else:
            assert answer.choices[0].finish_reason == "stop"
            found = answer.choices[0].message.content
        assert found == expected


def test_multi_turn_conversation(client: openai.OpenAI) -> None:
    """The messages of answers can be sent back as they are."""
    messages: list[Any] = [{"role": "system", "content": "Be brief."}]
    plain: list[dict[str, Any]] = list(messages)
    for turn in range(3):
        messages.append({"role": "user", "content": f"index {turn}"})
        plain.append({"role": "user", "content": f"index {turn}"})
        answer = create(client, messages, seed=turn, max_tokens=8)
        count = client.completions.create(
            model="tiny", prompt=chatml(plain), max_tokens=1
        ).usage.prompt_tokens
        assert answer.usage.prompt_tokens == count
        messages.append(answer.choices[0].message)
        plain.append({"role": "assistant", "content": answer.choices[0].message.content})


def test_text_parts_and_names(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "def"}, {"type": "text", "text": "index"}]
    found = create(client, [{"role": "user", "content": parts, "name": "ada"}], seed=1, max_tokens=10)
    expected = create(client, [{"role": "user", "content": "def\nindex"}], seed=1, max_tokens=10)
    assert found.choices == expected.choices
    for role in ("developer", "tool"):
        create(client, [{"role": role, "content": "a"}], max_tokens=1)


def test_seeds_and_default_length(client: openai.OpenAI) -> None:
    """Without max_tokens an answer may fill the model's length."""
    texts = [create(client, seed=seed, temperature=3).choices[0].message.content for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    found = create(client, seed=1, extra_body={"ignore_eos": True})
    assert found.usage.total_tokens == 128 and found.choices[0].finish_reason == "length"
    for name in ("max_tokens", "max_completion_tokens"):
        assert create(client, extra_body={"ignore_eos": True}, **{name: 3}).usage.completion_tokens == 3


def test_errors(client: openai.OpenAI) -> None:
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
            create(client, **options)
        assert caught.value.body["param"] == field, (options, caught.value.body)
        assert message in caught.value.body["message"]
    with pytest.raises(openai.NotFoundError, match="served model"):
        client.chat.completions.create(model="other", messages=USER)


def test_metrics_count_chat_requests(server: Server) -> None:
    name = 'hero_requests_total{endpoint="/v1/chat/completions",status="400"}'
    before = server.metrics().get(name, 0)
    assert server.request("/v1/chat/completions", {})[0] == 400
    assert server.metrics()[name] == before + 1


def test_renderer_that_was_killed_starts_again(server: Server, client: openai.OpenAI) -> None:
    expected = create(client, seed=1, max_tokens=5).choices
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    assert len(children) == 1 and "hero_moe.chat_renderer" in Path(f"/proc/{children[0]}/cmdline").read_text()
    os.kill(int(children[0]), signal.SIGKILL)
    time.sleep(0.2)
    assert create(client, seed=1, max_tokens=5).choices == expected


def test_renderer_does_not_see_the_api_key(run: Path) -> None:
    with serving(run, "--api-key", "secret-7") as server:
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        assert b"HERO_API_KEY" not in Path(f"/proc/{children[0]}/environ").read_bytes()
        assert server.request("/v1/chat/completions", {"messages": USER})[0] == 401
        pid = int(children[0])
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists():  # it ends with the server
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def bare(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model without a chat template."""
    folder = tmp_path_factory.mktemp("bare") / "tiny"
    shutil.copytree(checkpoint(run, 40), folder)
    for name in ("chat_template.jinja", "manifest.json", "state.json"):
        (folder / name).unlink()
    return folder


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


@pytest.mark.parametrize("name", TEMPLATES)
def test_prompts_equal_those_of_transformers(bare: Path, tmp_path: Path, name: str) -> None:
    """The log-probabilities of an answer are those of a completion of the ids of apply_chat_template."""
    folder = tmp_path / "tiny"
    shutil.copytree(bare, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATES[name])
    for file in ("config.toml", "config.json"):  # room for long control tokens
        text = (folder / file).read_text()
        (folder / file).write_text(re.sub(r'(max_position_embeddings"?)( = |: )128', r"\1\g<2>1024", text))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    compared = []
    with serving(folder) as server:
        client = client_of(server)

        @settings(
            max_examples=12,
            derandomize=True,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        @given(st.data())
        def check(data: st.DataObject) -> None:
            messages = data.draw(conversations(max_turns=2))
            options: dict[str, Any] = {"max_tokens": 2, "seed": 1, "extra_body": {"ignore_eos": True}}
            try:
                ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            except Exception as error:
                with pytest.raises(openai.BadRequestError) as caught:
                    create(client, messages, **options)
                assert " ".join(str(error).split()) in caught.value.body["message"]
                return
            found = create(client, messages, logprobs=True, **options)
            expected = client.completions.create(model="tiny", prompt=[ids], logprobs=0, **options)
            assert found.usage == expected.usage
            logs = [token.logprob for token in found.choices[0].logprobs.content]
            assert logs == expected.choices[0].logprobs.token_logprobs
            compared.append(ids)

        check()
        assert len(compared) >= 3
        info = json.loads(server.request("/tokenizer_info")[1])
        assert info["chat_template"] == TEMPLATES[name]


def test_trained_template_in_exports(run: Path, tmp_path: Path) -> None:
    """Training, export and transformers: the same prompt everywhere."""
    run_hero("export", run, tmp_path / "exported")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "exported")
    messages = [*USER, {"role": "assistant", "content": "路由"}, {"role": "user", "content": "x"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == chatml(messages)
    resumed = json.loads((tmp_path / "exported" / "tokenizer_config.json").read_text())
    assert resumed["eos_token"] == "<|endoftext|>"
    assert (checkpoint(run, 40) / "chat_template.jinja").read_bytes() == (
        tmp_path / "exported" / "chat_template.jinja").read_bytes()  # fmt: skip
    copy = tmp_path / "resumed"
    shutil.copytree(run, copy)
    run_hero("train", "--run", copy, "--resume", "--train.steps=41")
    assert (checkpoint(copy, 41) / "chat_template.jinja").exists()


def test_sentencepiece_run(tmp_path: Path) -> None:
    """Control pieces that the template writes become their ids, as in training; also after an export."""
    pieces = train_sentencepiece(tmp_path)
    template = tmp_path / "own.jinja"
    template.write_text(
        "{% for m in messages %}{{ '<' ~ m.role ~ '>' ~ m.content ~ (eos_token if m.role == 'assistant') }}"
        "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    run = trained_on_chats(tmp_path, pieces, str(template))
    messages = [
        *USER,
        {"role": "assistant", "content": "路由 🦆 \u2581"},
        {"role": "user", "content": "</s> x"},
    ]
    text = compile_template(template.read_text())(messages, {"eos_token": "</s>"}, add_generation_prompt=True)
    (ids,) = make_encoder(load_tokenizer(str(pieces))).encode([text], conversation=True)
    assert ids.count(1) == 2
    options: dict[str, Any] = {"max_tokens": 2, "seed": 1, "extra_body": {"ignore_eos": True}}
    run_hero("export", run, tmp_path / "tiny-exported")
    for folder in (run, tmp_path / "tiny-exported"):
        with serving(folder, "--model-name", "tiny", "--dtype", "fp64") as server:
            client = client_of(server)
            found = create(client, messages, logprobs=True, **options)
            expected = client.completions.create(model="tiny", prompt=[ids], logprobs=0, **options)
            assert found.usage == expected.usage
            logs = [token.logprob for token in found.choices[0].logprobs.content]
            assert logs == expected.choices[0].logprobs.token_logprobs
    exported = AutoTokenizer.from_pretrained(tmp_path / "tiny-exported")
    found = exported.apply_chat_template(
        messages,
        add_generation_prompt=True,
        return_dict=False,
        tokenizer_kwargs={"split_special_tokens": False},
    )
    assert found == ids


def chat_lines(run: Path, lines: str, *words: Any) -> list[str]:
    return run_hero("chat", run, *words, input=lines.encode()).stdout.split("\n")


def test_hero_chat_answers_lines(run: Path, client: openai.OpenAI) -> None:
    """Every line is a message; the n-th answer uses the n-th seed."""
    options = ["--seed", 5, "--max-tokens", 12, "--system", "Be brief."]
    first, second, third, rest = chat_lines(run, "def index\n\nreturn\n/reset\ndef index\n", *options)
    assert rest == ""
    messages: list[Any] = [{"role": "system", "content": "Be brief."}]
    for seed, content, found in ((5, "def index", first), (6, "return", second)):
        messages.append({"role": "user", "content": content})
        answer = create(client, messages, seed=seed, max_tokens=12).choices[0].message.content
        assert found == answer.lstrip(" \n")
        messages.append({"role": "assistant", "content": answer})
    again = [messages[0], {"role": "user", "content": "def index"}]
    assert third == create(client, again, seed=7, max_tokens=12).choices[0].message.content.lstrip(" \n")
    assert chat_lines(run, "def index\n/exit\nreturn\n", *options) == [first, ""]
    assert chat_lines(run, "def index", *options) == [first, ""]
    assert chat_lines(run, "") == [""]


def test_hero_chat_rejects(run: Path, bare: Path) -> None:
    long = hero("chat", run, input=b"def " * 500 + b"\n")
    assert_exit_2(long, "tokens, expected fewer than the model's maximum length of 128", "/reset")
    assert_exit_2(hero("chat", run, input=b"\xff\n"), "line 1: byte 0: invalid UTF-8")
    with_system = ["--chat-template", "deepseek", "--system", "a"]
    assert hero("chat", bare, *with_system, "--max-tokens", 1, input=b"a\n").returncode == 0


def read_until(terminal: int, text: bytes) -> bytes:
    found, deadline = b"", time.monotonic() + 60
    while text not in found:
        assert time.monotonic() < deadline, found
        if select.select([terminal], [], [], 1)[0]:
            found += os.read(terminal, 4096)
    return found


def test_hero_chat_in_a_terminal(run: Path) -> None:
    """Ctrl-C stops an answer and discards a line, /reset starts again, Ctrl-D ends."""
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [PROGRAM, "chat", run, "--max-tokens", "100", "--temperature", "5"],
        stdin=end,
        stdout=end,
        stderr=end,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    try:
        read_until(terminal, b"> ")
        os.write(terminal, b"def index\n")
        read_until(terminal, b"\n> ")
        os.write(terminal, b"unfinished")
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        read_until(terminal, b"\n> ")
        os.write(terminal, b"/reset\n")
        read_until(terminal, b"> ")
        os.write(terminal, b"def " * 300 + b"\n")
        read_until(terminal, b"/reset starts again")
        os.write(terminal, b"index\n")
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        read_until(terminal, b"\n> ")
        os.write(terminal, b"\x04")
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
        os.close(end)
