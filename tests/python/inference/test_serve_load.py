"""`hero serve` under fuzzed requests and many concurrent clients."""

from __future__ import annotations

import http.client
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from malformed_requests import LARGE_BODIES, check_answer, exchange, http_bytes, malformed, valid_requests
from program import run_hero, training
from serving import Server, events, run_threads, serving, wait_for

pytestmark = pytest.mark.long

WARMUP, MALFORMED, CLIENTS = 2000, 12_000, 64
GROWTH, PEAK = 8 << 20, 100 << 20  # bytes of resident memory
SAME = ("index", "text", "finish_reason")


@pytest.fixture(scope="module")
def folder(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in fp64, so that samples do not depend on other sequences in the batch."""
    run = tmp_path_factory.mktemp("serve") / "tiny"
    settings = {"router.kind": "hero", "train.dtype": "fp64", "train.steps": 10}
    run_hero(*training(run, data, settings))
    return run


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    words = [
        "--max-tokens",
        24,
        "--max-body",
        20_000,
        "--max-batch",
        16,
        "--max-queue",
        40,
        "--chat-template",
        "plain",
    ]
    with serving(folder, *words) as started:
        yield started


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


def test_malformed_requests_do_not_affect_others(server: Server) -> None:
    """12,000 malformed requests from twelve clients, with a valid one after every ten."""
    valid, counts = valid_requests(), Counter[str]()
    expected = [ask(server, request, counts) for request in valid]
    memory = [server.memory()]
    server.reset_peak()

    def send(begin: int, end: int, worker: int) -> None:
        for i in range(begin + worker, end, 12):
            rng = random.Random(i)
            sent = malformed(rng, valid)
            counts[str(check_answer(exchange(server.port, rng, sent), sent))] += 1
            if i // 12 % 10 == 0:
                number = rng.randrange(len(valid))
                check_same(ask(server, valid[number], counts), expected[number])
                counts["valid requests"] += 1

    for begin, end in ((0, WARMUP), (WARMUP, MALFORMED)):
        run_threads(12, partial(send, begin, end))
        wait_for(lambda: server.metrics()["hero_running_texts"] == server.metrics()["hero_queue_length"] == 0)
        memory.append(server.memory())
    memory.append(server.memory("VmHWM"))
    print(dict(counts), [f"{size >> 20} MiB" for size in memory])
    assert counts["valid requests"] >= MALFORMED // 12 and counts["200"] > 500 and counts["400"] > 3000
    assert memory[2] - memory[1] < GROWTH and memory[3] - memory[0] < PEAK
    for request, answer in zip(valid, expected, strict=True):
        check_same(ask(server, request, counts), answer)


def test_many_concurrent_clients(server: Server) -> None:
    """64 clients, each with eight requests on one connection, every second one streamed."""
    valid, counts = valid_requests(), Counter[str]()
    expected = [ask(server, request, counts) for request in valid]
    before = server.memory()

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
    print(dict(counts), f"{before >> 20} -> {server.memory() >> 20} MiB")
    assert counts["answers"] == CLIENTS * 8
    assert server.memory() - before < GROWTH


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
        response, answer = http.client.HTTPResponse(s), bytearray()
        response.begin()
        assert response.status == 200
        begun = time.monotonic()
        while part := response.read(1 << 17):
            answer += part
            if time.monotonic() - begun < 15:
                time.sleep(0.2)
    assert len(answer) > 20_000_000
    assert len(json.loads(answer)["choices"]) == 512


def test_memory_of_large_invalid_bodies(folder: Path) -> None:
    """Peak and remaining memory of bodies of 4 MB from 16 clients."""
    with serving(folder) as server:
        before = server.memory()

        def post(worker: int) -> None:
            for i in range(6):
                body = LARGE_BODIES[(worker + i) % len(LARGE_BODIES)]
                assert server.request("/v1/completions", raw=body)[0] in (400, 503)

        run_threads(16, post)
        print(f"{before >> 20} -> {server.memory('VmHWM') >> 20} MiB at most")
        wait_for(lambda: server.memory() - before < PEAK)
