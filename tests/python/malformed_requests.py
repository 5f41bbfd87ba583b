"""Random malformed requests to `hero serve`, as bytes."""

from __future__ import annotations

import json
import random
import re
import socket
import struct
from typing import Any

ERROR_STATUSES = {400, 403, 404, 405, 411, 413, 414, 415, 431, 499, 503}  # 499: the client disconnected


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


JUNK: list[Any] = [
    *(None, True, False, 0, -1, 3, 64, 129, 1.5, 1e300, -1e-300, 10**25, 2**63, 2**64 - 1),
    *("", "x", "\x00", "汉" * 50, {}, {"a": {"b": [1]}}),
    *([], [[]], [None], [1, "a"], [[1], "a"], ["a", 1]),
]
FIELDS = (
    "prompt messages model max_tokens n temperature top_p top_k seed stop echo logprobs stream stream_options suffix "
    "best_of logit_bias user ignore_eos other"
).split()
POSTED = ["/v1/completions"] * 8 + ["/v1/chat/completions"] * 3 + ["/tokenize", "/detokenize"]
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
LARGE_BODIES = [b'{"prompt": [' + b"1," * 2_000_000 + b'"a"]}', b'["' + b"x" * 4_000_000,
                b"{" + b",".join(b'"k%d":[%d]' % (i, i) for i in range(200_000)) + b"}",
                b'{"prompt": [' + b"{}," * 1_390_000 + b"{}]}", b'{"prompt": [' + b"[1]," * 1_000_000 + b'""]}']  # fmt: skip
CHUNKED = http_bytes("/tokenize", b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
GARBAGE = [b"\r\n" * 50, b"A" * 70_000, b"GET / HTTP/9.9\r\n\r\n",
           b"GET /health HTTP/1.1\r\nRange: bytes=" + b"1-2," * 1500 + b"1-2\r\n\r\n",
           CHUNKED + b"ffffffffffffffff\r\n", CHUNKED + b"5\r\n{\r\n", CHUNKED + b"zz\r\n",
           CHUNKED + b"1;x=" + b"y" * 5000]  # fmt: skip


def malformed(rng: random.Random, valid: list[dict[str, Any]]) -> bytes:
    """The bytes of a request, invalid in most cases."""
    request = dict(rng.choice(valid))
    if rng.random() < 0.2:
        request["messages"] = [{"role": rng.choice(["user", "bot"]), "content": request.pop("prompt")}]
    kind = rng.randrange(9)  # 8: valid
    if kind < 3:
        for _ in range(rng.randint(1, 3)):
            request[rng.choice(FIELDS)] = rng.choice(JUNK)
    body = json.dumps(request, ensure_ascii=rng.random() < 0.5).encode()
    if kind == 3:
        body = scrambled(rng, body)
    if kind == 4:
        body = rng.choice(LARGE_BODIES if rng.random() < 0.1 else [*BODIES, rng.randbytes(500)])
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
