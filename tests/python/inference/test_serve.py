"""`hero serve` with the openai client and plain HTTP, and its shutdown."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from hero_moe import load
from program import ENVIRONMENT, PROGRAM, assert_exit_2, checkpoint, hero, run_hero, training
from serving import Server, events, parse_metrics, send_raw, serving, wait_for

PROMPT = "def index_1(node):\n\treturn "
LOGPROB = 1e-9  # tolerance of a token's log-probability in fp64
# More sequences than a test can wait for.
ENDLESS = {"prompt": [PROMPT] * 8, "n": 128, "max_tokens": 100, "ignore_eos": True}


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A HERO model in fp64, trained for a few steps; samples do not depend on the summation order."""
    folder = tmp_path_factory.mktemp("serve") / "tiny"
    settings = {"router.kind": "hero", "train.dtype": "fp64", "train.steps": 30, "optim.lr": 3e-3}
    run_hero(*training(folder, data, settings))
    return folder


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Server]:
    with serving(run) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def create(client: openai.OpenAI, prompt: Any = PROMPT, **options: Any) -> Any:
    return client.completions.create(model="tiny", prompt=prompt, **options)


def test_text_matches_hero_generate(run: Path, client: openai.OpenAI) -> None:
    for words in ({"seed": 3}, {"seed": 4, "top_p": 0.9}, {"temperature": 0}):
        options = [word for name, value in words.items() for word in (f"--{name.replace('_', '-')}", value)]
        text = run_hero("generate", run, "--prompt", PROMPT, "--max-tokens", 24, *options).stdout
        found = create(client, max_tokens=24, **words)
        # The program prints the whole text and a newline.
        assert PROMPT + found.choices[0].text + "\n" == text
        assert found.choices[0].finish_reason == "length" and found.object == "text_completion"
        assert found.usage.completion_tokens == 24 and found.model == "tiny"
    assert create(client, seed=5, extra_body={"top_k": 1}).choices[0].text == create(
        client, temperature=0).choices[0].text  # fmt: skip


def test_seeds(client: openai.OpenAI) -> None:
    texts = [create(client, seed=seed, max_tokens=30).choices[0].text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert create(client, max_tokens=30).choices[0].text != create(client, max_tokens=30).choices[0].text


def test_several_prompts_and_choices(client: openai.OpenAI) -> None:
    prompts = ["def", "的一是", PROMPT]
    choices = create(client, prompts, n=3, seed=7, max_tokens=20).choices
    assert [choice.index for choice in choices] == list(range(9))
    for choice in choices:
        alone = create(client, prompts[choice.index // 3], seed=7 + choice.index % 3, max_tokens=20)
        assert alone.choices[0].text == choice.text
    assert len({choice.text for choice in choices}) == 9


def test_streams_concatenate_to_the_whole_text(client: openai.OpenAI) -> None:
    """At a high temperature most tokens are single bytes; chunks never split a character."""
    options: dict[str, Any] = {"n": 3, "seed": 5, "temperature": 50, "max_tokens": 60}
    options["extra_body"] = {"ignore_eos": True}
    whole = create(client, **options)
    pieces, finish, usage = ["", "", ""], [None] * 3, None
    count = 0
    for chunk in create(client, stream=True, stream_options={"include_usage": True}, **options):
        assert usage is None
        usage = chunk.usage
        for choice in chunk.choices:
            count += 1
            pieces[choice.index] += choice.text
            assert finish[choice.index] is None
            finish[choice.index] = choice.finish_reason
    assert pieces == [choice.text for choice in whole.choices]
    assert "\N{REPLACEMENT CHARACTER}" in "".join(pieces)
    assert finish == ["length"] * 3 and usage == whole.usage and count > 60


def test_stop_strings(client: openai.OpenAI) -> None:
    text = create(client, seed=3, max_tokens=60).choices[0].text
    stops = [text[20:24], text[9:12], "nowhere"]
    expected = text[: min(text.find(stop) for stop in stops[:2])]
    for stop in (stops, [stops[1]]):
        choice = create(client, seed=3, max_tokens=60, stop=stop).choices[0]
        assert choice.finish_reason == "stop"
        assert choice.text == (expected if stop is stops else text[: text.find(stops[1])])
        streamed = create(client, seed=3, max_tokens=60, stop=stop, stream=True)
        assert "".join(chunk.choices[0].text for chunk in streamed) == choice.text


def test_echo_with_probabilities(run: Path, server: Server, client: openai.OpenAI) -> None:
    model = load(str(run), device="cpu")
    ids = json.loads(server.request("/tokenize", {"prompt": PROMPT})[1])["tokens"]
    logs = model.logits(torch.tensor([ids]))[0].log_softmax(-1)
    for max_tokens in (0, 1, 5):
        choice = create(client, [ids], echo=True, logprobs=3, max_tokens=max_tokens, seed=1).choices[0]
        found = choice.logprobs
        assert choice.text.startswith(PROMPT) and "".join(found.tokens[: len(ids)]) == PROMPT
        assert len(found.token_logprobs) == len(found.top_logprobs) == len(ids) + max_tokens
        assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
        for i, id in enumerate(ids[1:], 1):
            assert found.token_logprobs[i] == pytest.approx(logs[i - 1][id].item(), abs=LOGPROB)
            top = sorted(found.top_logprobs[i].values(), reverse=True)[:3]
            assert top == pytest.approx(logs[i - 1].topk(3).values.tolist(), abs=LOGPROB)
            assert found.top_logprobs[i][found.tokens[i]] == found.token_logprobs[i]
        for offset, token in zip(found.text_offset[: len(ids)], found.tokens, strict=False):
            assert choice.text[offset:].startswith(token)


def test_greedy_tokens_have_the_maximum_logprob(client: openai.OpenAI) -> None:
    text = create(client, temperature=0, max_tokens=30).choices[0].text
    options = {"logprobs": 1, "temperature": 0}
    greedy = create(client, max_tokens=30, **options).choices[0].logprobs
    for log, top in zip(greedy.token_logprobs, greedy.top_logprobs, strict=True):
        assert log == max(top.values())
    found = create(client, PROMPT + text, echo=True, max_tokens=1, **options).choices[0].logprobs
    assert found.token_logprobs[-1] == max(found.top_logprobs[-1].values())


def test_logprobs_of_streams(client: openai.OpenAI) -> None:
    options = {"echo": True, "logprobs": 2, "max_tokens": 12, "seed": 2, "temperature": 50}
    whole = create(client, **options).choices[0].logprobs
    for name in ("tokens", "token_logprobs", "text_offset"):
        pieces: list[Any] = []
        for chunk in create(client, stream=True, **options):
            pieces += getattr(chunk.choices[0].logprobs, name)
        assert pieces == getattr(whole, name)


def test_empty_prompt_starts_a_document(client: openai.OpenAI) -> None:
    found = create(client, "", temperature=0, max_tokens=4)
    assert found.choices[0].text == create(client, [1], temperature=0, max_tokens=4).choices[0].text
    assert found.usage.prompt_tokens == 1


def test_errors_raise_openai_exceptions(client: openai.OpenAI) -> None:
    for options, field in (({"n": 0}, "n"), ({"suffix": "x"}, "suffix"), ({"max_tokens": 5000}, "max_tokens"),
                           ({"best_of": 3}, "best_of"), ({"extra_body": {"min_p": 0.1}}, "min_p"),
                           ({"prompt": [600]}, "prompt"), ({"max_tokens": 128}, "prompt")):  # fmt: skip
        with pytest.raises(openai.BadRequestError) as caught:
            create(client, **options)
        assert caught.value.body["param"] == field and "found" in caught.value.body["message"]
    with pytest.raises(openai.NotFoundError, match='expected \\\\?"tiny'):
        client.completions.create(model="gpt-2", prompt="x")
    assert [model.id for model in client.models.list()] == ["tiny"]


BAD_BODIES = [b"", b"{", b"[]", b"null", b'{"prompt": NaN}', b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}',
              b"[" * 50_000, b'{"a":' * 50_000, b'{"prompt": "x", "n": 1e999}', b'{"prompt": {}}',
              b'{"prompt": "x", "n": 123456789012345678901234567890}', b'{"prompt": [[]]}', b"\x00" * 100,
              b'{"prompt": "x", "prompt": "y"}', b'{"prompt": [1, "a"]}', b'{"prompt": [-1]}']  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/detokenize"])
def test_bad_bodies(server: Server, path: str) -> None:
    for body in BAD_BODIES:
        status, text, _ = server.request(path, raw=body)
        error = json.loads(text)["error"]
        assert status == 400 and "expected" in error["message"] and error["type"] == "invalid_request_error"


def test_invalid_http_requests(server: Server) -> None:
    def status(data: bytes) -> int:
        answer = send_raw(server.port, data)
        assert answer.startswith(b"HTTP/1.1 "), answer
        return int(answer[9:12])

    post = b"POST /v1/completions HTTP/1.1\r\n"
    kind = b"Content-Type: application/json\r\n"
    assert status(b"\x16\x03\x01 garbage\r\n\r\n") == 400
    assert status(b"GET / HTTP/1.1\r\n\r\n") == 404
    assert status(b"GET /v1/completions HTTP/1.1\r\n\r\n") == 405
    assert status(b"DELETE /v1/models HTTP/1.1\r\n\r\n") == 405
    assert status(b"GET /health HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc") == 400
    assert status(post + kind + b"\r\n") == 411
    assert status(post + kind + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}") == 415
    assert status(post + kind + b"Content-Length: -2\r\n\r\n{}") == 400
    assert status(post + kind + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}") == 400
    assert status(post + kind + b"Content-Length: 99999999999\r\n\r\n{}") == 413
    assert status(post + kind + b"Content-Length: 20\r\n\r\n{}") == 400  # ends early
    assert status(post + kind + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n") == 400
    assert status(b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n") == 414
    assert status(b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n") == 400
    assert status(b"a" * 200_000) == 431
    ranges = b"Range: bytes=" + b"1-2," * 1900 + b"3-4\r\n"
    assert status(b"GET /health HTTP/1.1\r\n" + ranges + b"\r\n") == 200
    body = b'{"prompt": "def", "max_tokens": 1}'
    pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    assert status(post + kind + b"Transfer-Encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n") == 200


@pytest.mark.parametrize(
    "kind",
    [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "unknown"],
)
def test_bodies_are_json_whatever_the_content_type(server: Server, kind: str | None) -> None:
    def post(path: str, data: str) -> tuple[int, Any]:
        connection = server.connect()
        connection.request("POST", path, data, {} if kind is None else {"Content-Type": kind})
        response = connection.getresponse()
        found = response.status, json.loads(response.read())
        connection.close()
        return found

    status, answer = post("/v1/completions", json.dumps({"prompt": "def", "max_tokens": 2, "seed": 1}))
    assert status == 200 and answer["usage"]["completion_tokens"] == 2
    prompt = PROMPT * 400  # longer than the forms that cpp-httplib accepts
    status, answer = post("/tokenize", json.dumps({"prompt": prompt}))
    assert status == 200
    assert answer == json.loads(server.request("/tokenize", {"prompt": prompt})[1])
    for data in (
        "prompt=def",
        '--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\ndef\r\n--x--\r\n',
    ):
        status, answer = post("/v1/completions", data)
        assert status == 400 and answer["error"]["message"].startswith("body")


def test_web_pages_of_other_hosts_are_rejected(server: Server) -> None:
    host = f"127.0.0.1:{server.port}"
    body = {"prompt": "def", "max_tokens": 1}
    for origin in ("http://example.com", "null", "http://127.0.0.1", f"http://localhost:{server.port}", host,
                   f"http://127.0.0.1:{server.port + 1}", f"http://{host}.example.com"):  # fmt: skip
        for content in (body, None):
            path = "/v1/models" if content is None else "/v1/completions"
            status, text, headers = server.request(path, content, Origin=origin, Content_Type="text/plain")
            error = json.loads(text)["error"]
            assert status == 403 and error["code"] == "cross_origin"
            message = f"Origin: found {origin}, expected the Host header's host and port, {host}"
            assert error["message"] == message
            assert text.count("\n") == 0 and "Access-Control-Allow-Origin" not in headers
    for origin in (f"http://{host}", f"https://{host}"):  # behind a proxy with TLS
        assert server.request("/v1/completions", body, Origin=origin)[0] == 200
        assert server.request("/v1/models", Origin=origin)[0] == 200
    assert server.request("/v1/models", Origin="https://models.example", Host="Models.example")[0] == 200


def test_connections_stay_open(server: Server) -> None:
    connection = server.connect()
    for _ in range(12):
        body = json.dumps({"prompt": "def", "max_tokens": 2})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200 and response.read()
        connection.request("POST", "/v1/completions", "{}", {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 400 and response.read()
        assert connection.sock is not None
    connection.close()


def test_tokenize_and_detokenize(server: Server) -> None:
    for text in ("", PROMPT, "汉字 – Ünïcödé 🙂\x00", "</s> in a text"):
        answer = json.loads(server.request("/tokenize", {"prompt": text, "add_special_tokens": False})[1])
        assert answer["count"] == len(answer["tokens"]) and 1 not in answer["tokens"]
        assert json.loads(server.request("/detokenize", {"tokens": answer["tokens"]})[1]) == {"prompt": text}
    info = json.loads(server.request("/tokenizer_info")[1])
    assert info["eos_token"] == "</s>" and info["bos_token"] is None
    assert json.loads(server.request("/tokenize", {"prompt": "</s>"})[1])["tokens"] == [1]
    assert server.request("/detokenize", {"tokens": [500]})[0] == 400


def test_metrics(server: Server) -> None:
    before = server.metrics()
    server.complete([PROMPT, "def"], n=2, max_tokens=10, ignore_eos=True)
    server.request("/v1/completions", {"prompt": 1})
    server.request("/nowhere/at/all")
    after: dict[str, float] = {}

    def more(name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    def settled() -> bool:
        """Whether all counters that update after the response are up to date."""
        after.update(server.metrics())
        answers = (("/v1/completions", 200), ("/v1/completions", 400), ("other", 404))
        counts = [
            more(f'hero_requests_total{{endpoint="{path}",status="{status}"}}') for path, status in answers
        ]
        return counts == [1, 1, 1] and after["hero_queue_length"] == after["hero_running_texts"] == 0

    wait_for(settled)
    assert more("hero_generated_tokens_total") == 40
    assert more("hero_time_to_first_token_seconds_count") == 1
    assert more("hero_time_per_token_seconds_count") == 36
    assert more("hero_batch_size_sum") == 40
    for name in ("hero_time_to_first_token_seconds", "hero_time_per_token_seconds", "hero_batch_size"):
        buckets = [value for key, value in after.items() if key.startswith(f"{name}_bucket")]
        assert buckets == sorted(buckets) and buckets[-1] == after[f"{name}_count"]


def test_client_disconnect_cancels_the_request(server: Server) -> None:
    before = server.metrics()["hero_cancelled_requests_total"]
    for stream in (True, False):
        connection = server.connect()
        body = json.dumps(ENDLESS | {"stream": stream})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        if stream:
            assert connection.getresponse().readline().startswith(b"data: {")
        wait_for(lambda: server.metrics()["hero_running_texts"] > 0)
        assert connection.sock
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        wait_for(lambda: server.metrics()["hero_running_texts"] == 0)
    assert server.metrics()["hero_cancelled_requests_total"] == before + 2


def test_many_streams_at_once(server: Server) -> None:
    expected = [server.complete(PROMPT, seed=i, max_tokens=20)["choices"][0]["text"] for i in range(64)]
    found: list[str] = [""] * 64

    def stream(i: int) -> None:
        body = {"prompt": PROMPT, "seed": i, "max_tokens": 20, "stream": True}
        status, text, headers = server.request("/v1/completions", body)
        assert status == 200 and headers["Content-Type"] == "text/event-stream"
        found[i] = "".join(chunk["choices"][0]["text"] for chunk in events(text))

    threads = [threading.Thread(target=stream, args=(i,)) for i in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def opened(server: Server, **headers: str) -> Any:
    """A connection with a started endless stream."""
    connection = server.connect()
    body = json.dumps(ENDLESS | {"stream": True})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    assert response.status == 200 and response.readline().startswith(b"data: {")
    return connection, response


def test_limits(run: Path) -> None:
    words = ["--max-body", 2000, "--max-tokens", 110, "--max-batch", 1, "--max-queue", 1, "--timeout", 1.5]
    with serving(run, *words, "--model-name", "other", "--api-key", "let me in") as server:
        key = {"Authorization": "Bearer let me in"}
        assert server.request("/health")[0] == 200
        for wrong in ({}, {"Authorization": "Bearer let me i"}, {"Authorization": "let me in"}):
            for path in ("/metrics", "/v1/models", "/v1/completions"):
                body = {"prompt": "x"} if path == "/v1/completions" else None
                status, text, headers = server.request(path, body, **wrong)
                assert status == 401 and json.loads(text)["error"]["code"] == "invalid_api_key"
                assert headers["WWW-Authenticate"] == "Bearer"
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="let me in", max_retries=0)
        assert client.completions.create(model="other", prompt="x", max_tokens=2).model == "other"
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="no", max_retries=0).models.list()

        def status(body: dict[str, Any]) -> int:
            return server.request("/v1/completions", body, **key)[0]

        assert status({"prompt": "x", "max_tokens": 111}) == 400
        assert status({"prompt": "x" * 3000}) == 413
        long = b'{"prompt": "' + b"x" * 3000
        chunked = (
            b"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer let me in\r\n"
            b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n"
        )
        assert send_raw(server.port, chunked % (len(long), long)).startswith(b"HTTP/1.1 413")

        # One sequence runs, one request waits, the next is rejected; the first two time out.
        running, stream = opened(server, **key)
        waiting: list[int] = []
        thread = threading.Thread(target=lambda: waiting.append(status(ENDLESS)))
        thread.start()

        def queue() -> float:
            return parse_metrics(server.request("/metrics", **key)[1])["hero_queue_length"]

        wait_for(lambda: queue() == 1 or not thread.is_alive())
        full, text, headers = server.request("/v1/completions", {"prompt": "x"}, **key)
        assert full == 503 and headers["Retry-After"] == "1"
        assert json.loads(text)["error"]["code"] == "queue_full"
        last = stream.read().decode().strip().split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
        running.close()
        thread.join()
        assert waiting == [504]
        assert status({"prompt": "x", "max_tokens": 2}) == 200


def test_signal_lets_requests_finish(run: Path) -> None:
    with serving(run) as server:
        found: list[str] = []
        body = {"prompt": [PROMPT] * 4, "n": 64, "max_tokens": 60, "ignore_eos": True, "stream": True}
        thread = threading.Thread(target=lambda: found.append(server.request("/v1/completions", body)[1]))
        thread.start()
        wait_for(lambda: server.metrics()["hero_running_texts"] > 0)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0
        thread.join()
        finished = [c["choices"][0] for c in events(found[0]) if c["choices"][0]["finish_reason"]]
        assert len(finished) == 256
        with pytest.raises(ConnectionRefusedError):
            server.request("/health")


def test_signal_with_short_drain_time(run: Path) -> None:
    with serving(run, "--drain", 0.2, "--max-batch", 1) as server:
        connection, stream = opened(server)
        server.process.send_signal(signal.SIGINT)
        last = stream.read().decode().strip().split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "stopping"
        assert server.process.wait(timeout=60) == 0
        connection.close()


def test_second_signal_exits_immediately(run: Path) -> None:
    with serving(run, "--max-batch", 1) as server:
        connection, _ = opened(server)
        server.process.send_signal(signal.SIGTERM)

        def refuses_connections() -> bool:
            try:
                socket.create_connection(("127.0.0.1", server.port)).close()
            except ConnectionRefusedError:
                return True
            return False

        wait_for(refuses_connections)
        assert server.stop() == 128 + signal.SIGTERM
        connection.close()


def test_rejects_invalid_command_lines(run: Path, server: Server, tmp_path: Path) -> None:
    assert_exit_2(hero("serve", run, "--port", server.port), "--port", "cannot listen")
    assert_exit_2(hero("serve", run, "--port", 0, "--host", "203.0.113.1"), "--host 203.0.113.1")
    assert_exit_2(hero("serve", run, "--port", 70000), "--port")
    assert_exit_2(hero("serve", run, "--max-queue", 0), "--max-queue")
    assert_exit_2(hero("serve", run, "--api-key", ""), "--api-key: found an empty value")
    assert_exit_2(hero("serve", tmp_path / "none"), "none")


def test_api_key_from_the_environment(run: Path) -> None:
    words = [PROGRAM, "serve", checkpoint(run, 30), "--port", "0", "--dtype", "fp32"]
    with subprocess.Popen(
        words, env=ENVIRONMENT | {"HERO_API_KEY": "secret"}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        server = Server(process, int(process.stdout.readline().rsplit(":", 1)[1]))
        assert server.request("/v1/models")[0] == 401
        models = json.loads(server.request("/v1/models", Authorization="Bearer secret")[1])
        assert models["data"][0]["id"] == "step-00000030"
        assert server.stop() == 0
