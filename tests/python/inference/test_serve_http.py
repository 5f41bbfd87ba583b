"""`hero serve` over plain HTTP: invalid requests, limits, signals and the command line."""

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

from program import ENVIRONMENT, PROGRAM, assert_exit_2, checkpoint, hero
from serving import ENDLESS, PROMPT, Server, events, parse_metrics, send_raw, served_run, serving, wait_for

LAST_CHUNK = b"\r\n0\r\n\r\n"


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return served_run(tmp_path_factory.mktemp("serve") / "tiny", data)


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Server]:
    with serving(run, "--allow-host", "models.example,other.example") as started:
        yield started


BAD_BODIES = [b"", b"{", b"[]", b"null", b'{"prompt": NaN}', b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}',
              b"[" * 50_000, b'{"a":' * 50_000, b'{"prompt": "x", "n": 1e999}', b'{"prompt": {}}',
              b'{"prompt": "x", "n": 123456789012345678901234567890}', b'{"prompt": [[]]}', b"\x00" * 100,
              b'{"prompt": "x", "prompt": "y"}', b'{"prompt": [1, "a"]}', b'{"prompt": [-1]}']  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_bad_bodies(server: Server, path: str) -> None:
    for body in BAD_BODIES:
        status, text, _ = server.request(path, raw=body)
        error = json.loads(text)["error"]
        assert status == 400 and "expected" in error["message"] and error["type"] == "invalid_request_error"


def test_invalid_http_requests(server: Server) -> None:
    def status(data: bytes, end: bytes | None = None) -> int:
        answer = send_raw(server.port, data, end=end)
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
    chunked = post + kind + b"Transfer-Encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n"
    assert status(chunked, LAST_CHUNK) == 200


def test_responses_by_protocol_version(server: Server) -> None:
    """Chunked for HTTP/1.1, until the connection closes for HTTP/1.0; also if the client has finished sending, which
    cancels a generation."""
    ids = [5, 269, 228] * 30_000
    for path, request, key in (("/v1/completions", {"prompt": [5], "n": 99, "max_tokens": 2, "seed": 1}, "choices"),
                               ("/tokenize", {"prompt": PROMPT * 3000}, "tokens"),
                               ("/detokenize", {"tokens": ids}, "prompt")):  # fmt: skip
        body = json.dumps(request)
        expected = json.loads(server.request(path, raw=body.encode())[1])
        for version in ("1.0", "1.1"):
            head = (
                f"POST {path} HTTP/{version}\r\nConnection: Keep-Alive\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            end = LAST_CHUNK if path == "/v1/completions" else None
            whole = send_raw(server.port, (head + body).encode(), timeout=60, end=end)
            answer_head, _, answer = whole.partition(b"\r\n\r\n")
            assert answer_head.startswith(b"HTTP/1.1 200")
            chunked = version == "1.1"
            assert (b"Transfer-Encoding: chunked" in answer_head) == chunked
            assert (b"Connection: close" in answer_head) == (not chunked)
            found = json.loads(unchunked(answer) if chunked else answer)
            assert found[key] == expected[key] and len(found[key]) >= 99


def unchunked(body: bytes) -> bytes:
    """The content of a complete chunked body."""
    content = b""
    while True:
        size, _, rest = body.partition(b"\r\n")
        if size == b"0":
            assert rest == b"\r\n"
            return content
        content += rest[: int(size, 16)]
        assert rest[int(size, 16) :].startswith(b"\r\n")
        body = rest[int(size, 16) + 2 :]


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


def test_host_header(server: Server) -> None:
    port = server.port
    for host in ("localhost", f"LOCALHOST:{port}", f"127.0.0.1:{port}", "127.1.2.3", f"[::1]:{port}",
                 "models.example:80", "other.example."):  # fmt: skip
        assert server.request("/health", Host=host)[0] == 200
        assert server.request("/v1/completions", {"prompt": "def", "max_tokens": 1}, Host=host)[0] == 200
    for host in ("example.com", f"example.com:{port}", "localhost.example.com", "192.0.2.1", "x.models.example",
                 "127.0.0.1.example.com", f"[2001:db8::1]:{port}"):  # fmt: skip
        for path, body in (("/health", None), ("/metrics", None), ("/v1/completions", {"prompt": "def"})):
            status, text, _ = server.request(path, body, Host=host)
            error = json.loads(text)["error"]
            assert status == 403 and error["code"] == "unknown_host"
            assert error["message"].startswith(f"Host: found {host}, expected") and "--allow-host" in text
    twice = b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: example.com\r\n\r\n"
    assert send_raw(server.port, twice).startswith(b"HTTP/1.1 400")


def test_long_prompts_are_rejected_before_tokenization(server: Server) -> None:
    status, text, _ = server.request("/v1/completions", {"prompt": ["def", "x" * 3_000_000]})
    error = json.loads(text)["error"]
    assert status == 400 and error["code"] == "context_length_exceeded" and error["param"] == "prompt"
    assert error["message"].startswith("prompt[1]: found 3000000 bytes, expected at most ")
    assert error["message"].endswith(", which fit into 128 tokens (max_position_embeddings)")


def test_limit_of_new_tokens_below_the_default(run: Path) -> None:
    with serving(run, "--max-tokens", 8) as server:
        answer = server.complete(prompt=[5, 6, 7], seed=1, ignore_eos=True)
        assert answer["usage"]["completion_tokens"] == 8
        assert server.request("/v1/completions", {"prompt": [5], "max_tokens": 9})[0] == 400


def test_budgets(run: Path) -> None:
    words = ["--max-response", 2_000_000, "--max-pending-response", 20_000_000, "--max-batch", 1]
    with serving(run, *words, "--max-request-tokens", 5000, "--max-pending-tokens", 5500) as server:

        def error(body: dict[str, Any], path: str = "/v1/completions") -> tuple[int, str, str]:
            status, text, headers = server.request(path, body)
            found = json.loads(text)["error"]
            assert (headers["Retry-After"] == "1") == (status == 503)
            return status, found["code"], found["message"]

        logprobs = {"prompt": [[5] * 100] * 4, "n": 10, "max_tokens": 0, "echo": True, "logprobs": 20}
        status, code, message = error(logprobs)
        assert (status, code) == (400, "request_too_large")
        assert message.endswith("expected at most 2000000 (--max-response)")
        server.complete(**logprobs | {"n": 4})
        status, code, message = error({"prompt": [[5] * 10] * 8, "n": 16, "max_tokens": 50})
        assert (status, code) == (400, "request_too_large")
        assert message == (
            f"body: found a request of {8 * (10 + 16 * 50)} tokens (prompts and new tokens of all completions), "
            "expected at most 5000 (--max-request-tokens)"
        )
        assert error({"prompt": "x" * 300_000}, "/tokenize")[:2] == (400, "request_too_large")

        ids = json.loads(server.request("/tokenize", {"prompt": "index"})[1])["tokens"]
        assert error({"tokens": ids * 410_000}, "/detokenize")[:2] == (400, "request_too_large")

        connection = server.connect()
        most = {"prompt": [5], "n": 45, "max_tokens": 100, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(most))
        assert connection.getresponse().readline().startswith(b"data: {")
        echoed = {"prompt": [[5] * 100] * 20, "max_tokens": 0, "echo": True}
        status, code, message = error(echoed)
        assert (status, code) == (503, "server_busy")
        assert message == (
            "found a request of 2000 tokens besides 4501 of others, expected at most 5500 in total "
            "(--max-pending-tokens): try again later"
        )
        assert connection.sock
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        wait_for(lambda: server.request("/v1/completions", echoed)[0] == 200)


def test_slow_clients_do_not_block_health(run: Path) -> None:
    """100 incomplete requests occupy all 34 threads."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    with serving(run, "--max-batch", 1, "--max-queue", 1) as server:
        slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        for i, s in enumerate(slow):
            s.sendall(head if i % 2 else head[:30])

        def get(path: str) -> tuple[int, str, Any]:
            connection = server.connect(timeout=5)
            connection.request("GET", path)
            response = connection.getresponse()
            found = response.status, response.read().decode(), response.headers
            connection.close()
            return found

        for _ in range(20):
            assert get("/health")[:2] == (200, '{"status":"ok"}')
            assert parse_metrics(get("/metrics")[1])["hero_running_texts"] == 0
        status, text, headers = get("/v1/models")
        assert status == 503 and headers["Retry-After"] == "1" and headers["Connection"] == "close"
        assert json.loads(text)["error"]["code"] == "too_many_connections"
        assert server.request("/v1/completions", {"prompt": "def"})[0] == 503
        for s in slow:
            s.close()
        wait_for(lambda: get("/v1/models")[0] == 200)


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
    assert_exit_2(
        hero("serve", run, "--port", 0, "--host", "203.0.113.1"), "--host 203.0.113.1", "no API key"
    )
    assert_exit_2(
        hero("serve", run, "--port", 0, "--host", "0.0.0.0"), "--api-key", "--allow-unauthenticated"
    )
    words = ["--port", 0, "--host", "203.0.113.1", "--allow-unauthenticated"]
    assert_exit_2(hero("serve", run, *words), "--host 203.0.113.1", "cannot listen")
    assert_exit_2(hero("serve", run, "--max-response", 1 << 30), "--max-pending-response: found 268435456")
    assert_exit_2(
        hero("serve", run, "--max-pending-tokens", 9), "expected at least --max-request-tokens = 1048576"
    )
    assert_exit_2(hero("serve", run, "--port", 70000), "--port")
    assert_exit_2(hero("serve", run, "--max-queue", 0), "--max-queue")
    assert_exit_2(hero("serve", run, "--api-key", ""), "--api-key: found an empty value")
    both = ["--api-key", "secret", "--allow-unauthenticated"]
    assert_exit_2(hero("serve", run, *both), "--allow-unauthenticated: found an API key")
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


def test_all_addresses(run: Path) -> None:
    words = [PROGRAM, "serve", run, "--port", "0", "--host", "0.0.0.0"]
    for options, warning in (
        (["--api-key", "secret"], ""),
        (
            ["--allow-unauthenticated"],
            "warning: serve: every machine that reaches 0.0.0.0 can use this server without an API key\n",
        ),
    ):
        with subprocess.Popen(
            [*words, *options], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout and process.stderr
            server = Server(process, int(process.stdout.readline().rsplit(":", 1)[1]))
            key = {"Authorization": "Bearer secret"}
            assert server.request("/v1/models")[0] == (200 if warning else 401)
            assert server.request("/v1/models", Host="192.0.2.1:80", **key)[0] == 200
            assert server.request("/v1/models", Host="example.com", **key)[0] == 403
            assert server.stop() == 0
            errors = process.stderr.read()
            assert warning in errors and ("warning: serve" in errors) == bool(warning)
