"""`hero serve` under fuzzed requests and many concurrent clients."""

from __future__ import annotations

import json
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from program import run_hero, training
from serving import Server, events, serving, wait_for

pytestmark = pytest.mark.long

FUZZED, FUZZERS, CLIENTS = 10_000, 12, 64
GROWTH = 8 << 20  # maximum growth of resident memory in bytes after a fifth of the requests
SAME = ("index", "text", "finish_reason")
ERROR_STATUSES = {400, 403, 404, 405, 411, 413, 414, 415, 431, 499, 503}  # 499: the client disconnected


@pytest.fixture(scope="module")
def folder(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in fp64, so that samples do not depend on other sequences in the batch."""
    run = tmp_path_factory.mktemp("serve") / "tiny"
    settings = {"router.kind": "hero", "train.dtype": "fp64", "train.steps": 10}
    run_hero(*training(run, data, settings))
    return run


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    words = ["--max-tokens", 24, "--max-body", 20_000, "--max-batch", 16, "--max-queue", 40]
    with serving(folder, *words) as started:
        yield started


def valid_requests() -> list[dict[str, Any]]:
    rng = random.Random(1)
    found: list[dict[str, Any]] = []
    for seed in range(40):
        prompt = rng.choice(["def", "def index_1(node):\n", [5, 269], ["的一", "x = "], [[7], [8, 9]], ""])
        request = {"prompt": prompt, "seed": seed, "max_tokens": rng.randint(1, 24)}
        if rng.random() < 0.3:
            request |= {"echo": True, "logprobs": rng.randint(0, 5)}
        if rng.random() < 0.3:
            request |= {"stop": [rng.choice(["\n", " ", "的"])], "n": rng.randint(1, 3)}
        if rng.random() < 0.3:
            request |= {"temperature": rng.choice([0, 0.5, 2]), "top_p": 0.9, "ignore_eos": True}
        found.append(request)
    return found


def check_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Asserts equal texts, tokens and counts, and log-probabilities within 1e-9 (summation order may
    differ)."""
    assert found["usage"] == expected["usage"]
    for one, other in zip(found["choices"], expected["choices"], strict=True):
        assert [one[name] for name in SAME] == [other[name] for name in SAME]
        if other["logprobs"] is not None:
            logs, wanted = one["logprobs"], other["logprobs"]
            assert logs["tokens"] == wanted["tokens"] and logs["text_offset"] == wanted["text_offset"]
            numbers, right = (
                [1 if log is None else log for log in one["token_logprobs"]] for one in (logs, wanted)
            )
            assert numbers == pytest.approx(right, abs=1e-9, rel=0)


def ask(server: Server, request: dict[str, Any], counts: Counter[str]) -> dict[str, Any]:
    """The response; retries while the queue is full."""
    while True:
        status, text, _ = server.request("/v1/completions", request)
        if status != 503:
            assert status == 200, text
            return json.loads(text)
        counts["retries"] += 1


JUNK: list[Any] = [
    *(None, True, False, 0, -1, 3, 64, 129, 1.5, 1e300, -1e-300, 10**25, 2**63, 2**64 - 1),
    *("", "x", "\x00", "汉" * 50, {}, {"a": {"b": [1]}}),
    *([], [[]], [None], [1, "a"], [[1], "a"], ["a", 1]),
]
FIELDS = (
    "prompt model max_tokens n temperature top_p top_k seed stop echo logprobs stream stream_options suffix "
    "best_of logit_bias user ignore_eos other"
).split()
POSTED = ["/v1/completions"] * 8 + ["/tokenize", "/detokenize"]
PATHS = [*POSTED, "/v1/models", "/metrics", "/nowhere", "/%00", "*"]


def http_bytes(path: str, body: bytes, length: int | None = None, method: str = "POST") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def scrambled(rng: random.Random, data: bytes) -> bytes:
    """Changes, inserts, deletes or repeats a few bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            changed[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            changed[at:at] = rng.randbytes(rng.randint(1, 8))
        elif kind == 2:
            del changed[at : at + rng.randint(1, 20)]
        else:
            changed[at:at] = changed[at : at + 30] * rng.randint(1, 40)
    return bytes(changed)


BODIES = [b"[" * 19_000, b'{"a":' * 3000, b" " * 25_000, b'{"prompt": ' + b"9" * 5000 + b"}",
          b'{"prompt": [' + b"1e5," * 300 + b"1]}"]  # fmt: skip
CHUNKED = http_bytes("/tokenize", b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
GARBAGE = [b"\r\n" * 50, b"A" * 70_000, b"GET / HTTP/9.9\r\n\r\n",
           b"GET /health HTTP/1.1\r\nRange: bytes=" + b"1-2," * 1500 + b"1-2\r\n\r\n",
           CHUNKED + b"ffffffffffffffff\r\n", CHUNKED + b"5\r\n{\r\n", CHUNKED + b"zz\r\n",
           CHUNKED + b"1;x=" + b"y" * 5000]  # fmt: skip


def fuzzed(rng: random.Random, valid: list[dict[str, Any]]) -> bytes:
    """The bytes of a request, invalid in most cases."""
    request = dict(rng.choice(valid))
    kind = rng.randrange(9)  # 8: valid
    if kind < 3:
        for _ in range(rng.randint(1, 3)):
            request[rng.choice(FIELDS)] = rng.choice(JUNK)
    body = json.dumps(request, ensure_ascii=rng.random() < 0.5).encode()
    if kind == 3:
        body = scrambled(rng, body)
    if kind == 4:
        body = rng.choice([*BODIES, rng.randbytes(500)])
    if kind == 5:
        return scrambled(rng, http_bytes(rng.choice(PATHS), body))
    if kind == 6:
        length = rng.choice([0, 1, len(body) - 1, len(body) + 7, 20_001, 2**40])
        method = rng.choice(["GET", "POST", "PUT", "HEAD", "OPTIONS"])
        return http_bytes(rng.choice(PATHS), body, length, method)
    if kind == 7:
        return rng.choice([*GARBAGE, rng.randbytes(rng.randint(1, 3000))])
    return http_bytes(rng.choice(POSTED), body)


def exchange(port: int, rng: random.Random, data: bytes) -> bytes:
    """Sends the data and reads the response, or disconnects at a random point."""
    cut = rng.random()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as s:
        try:
            if cut < 0.1:
                s.sendall(data[: rng.randrange(len(data) + 1)])
                if rng.random() < 0.5:  # with a reset
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return b""
            s.sendall(data)
            if cut < 0.2:
                s.recv(rng.randint(1, 200))
                return b""
            s.settimeout(1)
            try:
                answer = s.recv(65536)
            except TimeoutError:  # the server waits for more data
                answer = b""
            s.settimeout(60)
            s.shutdown(socket.SHUT_WR)
            while piece := s.recv(65536):
                answer += piece
            return answer
        except ConnectionError:
            return b""


def check_answer(answer: bytes, sent: bytes) -> int | None:
    """The status of a well-formed response; None if the server sent nothing."""
    if not answer:
        return None
    match = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    assert match, (sent, answer[:200])
    status = int(match[1])
    assert status in ERROR_STATUSES | {200}, (sent, answer[:500])
    if status in ERROR_STATUSES and not sent.startswith(b"HEAD"):
        body = answer.split(b"\r\n\r\n", 1)[1].split(b"HTTP/1.1 ")[0]
        assert json.loads(body)["error"]["message"], (sent, answer)
    return status


def resident(server: Server) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) << 10  # type: ignore[index]


def run_threads(count: int, work: Callable[[int], None]) -> None:
    """Runs `work(0)`, `work(1)`, ... in threads; raises the first failure."""
    failures: list[BaseException] = []

    def guarded(i: int) -> None:
        try:
            work(i)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_invalid_requests_do_not_affect_others(server: Server) -> None:
    """10,000 fuzzed requests from twelve clients, with a valid one after every ten."""
    valid, counts = valid_requests(), Counter[str]()
    expected = [ask(server, request, counts) for request in valid]
    memory: list[int] = []

    def fuzz(worker: int) -> None:
        for i in range(worker, FUZZED, FUZZERS):
            rng = random.Random(i)
            sent = fuzzed(rng, valid)
            status = check_answer(exchange(server.port, rng, sent), sent)
            counts[str(status)] += 1
            if i // FUZZERS % 10 == 0:
                number = rng.randrange(len(valid))
                check_same(ask(server, valid[number], counts), expected[number])
                counts["valid requests"] += 1
            if i == FUZZED // 5:
                memory.append(resident(server))

    run_threads(FUZZERS, fuzz)
    wait_for(lambda: server.metrics()["hero_running_texts"] == server.metrics()["hero_queue_length"] == 0)
    memory.append(resident(server))
    print(dict(counts), [f"{size >> 20} MiB" for size in memory])
    assert counts["valid requests"] >= FUZZED // 10 and counts["200"] > 500 and counts["400"] > 3000
    assert memory[1] - memory[0] < GROWTH
    for request, answer in zip(valid, expected, strict=True):
        check_same(ask(server, request, counts), answer)


def test_many_concurrent_clients(server: Server) -> None:
    """64 clients, each with eight requests on one connection, every second one streamed."""
    valid, counts = valid_requests(), Counter[str]()
    expected = [ask(server, request, counts) for request in valid]
    before = resident(server)

    def client(worker: int) -> None:
        connection = server.connect(timeout=300)
        for turn in range(8):
            number = (worker * 8 + turn) % len(valid)
            request = valid[number] | {"stream": turn % 2 == 1}
            while True:
                headers = {"Content-Type": "application/json"}
                connection.request("POST", "/v1/completions", json.dumps(request), headers)
                response = connection.getresponse()
                text = response.read().decode()
                if response.status != 503:
                    break
                counts["retries"] += 1
            assert response.status == 200, text
            counts["answers"] += 1
            if turn % 2 == 0:
                check_same(json.loads(text), expected[number])
                continue
            pieces = [""] * len(expected[number]["choices"])
            for chunk in events(text):
                pieces[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
            assert pieces == [choice["text"] for choice in expected[number]["choices"]]
        connection.close()

    run_threads(CLIENTS, client)
    print(dict(counts), f"{before >> 20} -> {resident(server) >> 20} MiB")
    assert counts["answers"] == CLIENTS * 8
    assert resident(server) - before < GROWTH


def test_slow_clients_are_served(server: Server) -> None:
    """A request that arrives in 35 seconds, longer than any single read may take, and a response of megabytes
    that is read in more than 15 seconds, longer than any single write may take."""
    request = json.dumps({"prompt": [[5] * 100] * 4, "n": 128, "max_tokens": 0, "echo": True, "logprobs": 20})
    sent = http_bytes("/v1/completions", request.encode())
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        s.settimeout(60)
        s.connect(("127.0.0.1", server.port))
        at = sent.index(b"\r\n\r\n") + 4
        s.sendall(sent[:at])
        size = (len(sent) - at) // 6
        for begin in range(at, len(sent), size):
            time.sleep(5)
            s.sendall(sent[begin : begin + size])
        answer, head, length, begun = bytearray(), b"", 1, time.monotonic()
        while len(answer) < length:
            answer += s.recv(1 << 17)
            head = bytes(answer[:1000]).split(b"\r\n\r\n")[0]
            assert head.startswith(b"HTTP/1.1 200"), head
            length = len(head) + 4 + int(re.search(rb"Content-Length: (\d+)", head)[1])  # type: ignore[index]
            if time.monotonic() - begun < 15:
                time.sleep(0.2)
    assert len(answer) == length > 20_000_000
    assert len(json.loads(answer[len(head) + 4 :])["choices"]) == 512


def test_memory_after_large_invalid_bodies(folder: Path) -> None:
    """The memory of rejected bodies returns to the system."""
    bodies = [b'{"prompt": [' + b"1," * 2_000_000 + b'"a"]}', b'["' + b"x" * 4_000_000,
              b"{" + b",".join(b'"k%d":[%d]' % (i, i) for i in range(200_000)) + b"}"]  # fmt: skip
    with serving(folder) as large:
        before = resident(large)

        def post(worker: int) -> None:
            for i in range(6):
                assert large.request("/v1/completions", raw=bodies[(worker + i) % 3])[0] in (400, 503)

        run_threads(16, post)
        wait_for(lambda: resident(large) - before < 100 << 20)
