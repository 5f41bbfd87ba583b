"""Memory of `hero serve`: responses that are much larger than their requests, and malformed requests.

Writes docs/results/serve-memory.md. Resident memory of the server's process; every row starts a server.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rounds import PROGRAM, ROOT, note, parser, table, write_page

sys.path.insert(0, str(ROOT / "tests/python"))
from malformed_requests import exchange, malformed, valid_requests  # noqa: E402
from serving import Server, run_threads, serving, wait_for  # noqa: E402

UNLIMITED = [
    word
    for name in ("response", "request-tokens", "pending-response", "pending-tokens")
    for word in (f"--max-{name}", 1 << 40)
]
# 8 prompts of 500 ids with 128 completions.
LARGE = {"prompt": [list(range(20, 520))] * 8, "n": 128, "echo": True, "logprobs": 20, "max_tokens": 0}
CLIENTS = 12


def train(work: Path) -> Path:
    """A run of a HERO model with a tokenizer, two steps."""
    text, tokenizer, data, run = ROOT / "docs", work / "tokenizer.model", work / "data", work / "run"
    words = ["--train.steps=2", "--optim.warmup_steps=1", "--train.sequence=128", "--train.dtype=fp32"]
    words += ["--eval.every=0"]
    configs = [ROOT / f"configs/{name}.toml" for name in ("small-qwen3", "hero")]
    for command in (
        ["data", "tokenizer", "--input", text, "--vocab-size", 1000, "--out", tokenizer],
        ["data", "tokenize", "--input", text, "--tokenizer", tokenizer, "--out", data],
        ["train", "--config", configs[0], "--config", configs[1], "--data", data, "--run", run, *words],
    ):
        subprocess.run([str(word) for word in (PROGRAM, *command)], check=True, capture_output=True)
    return run


def receive(server: Server, body: dict[str, Any]) -> int:
    """Bytes of a response, which is read without keeping it."""
    connection = server.connect(timeout=600)
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(response.read().decode())
    size, last = 0, b""
    while part := response.read(1 << 16):
        size, last = size + len(part), part
    connection.close()
    if not last.endswith(b"}"):
        raise RuntimeError("the response is incomplete")
    return size


def large_responses(run: Path, clients: int, body: dict[str, Any]) -> list[str]:
    """Requests of several clients at once: size of a response, memory before and at most, time."""
    with serving(run, *UNLIMITED) as server:
        server.complete("def", max_tokens=2)
        before, sizes, begin = server.memory(), set(), time.monotonic()
        run_threads(clients, lambda _: sizes.add(receive(server, body)))
        peak, seconds = server.memory("VmHWM"), time.monotonic() - begin
    low, high = min(sizes), max(sizes)
    size = f"{high / 1e6:.0f} MB" if high - low < 1e6 else f"{low / 1e6:.0f} to {high / 1e6:.0f} MB"
    row = [str(clients), size, mib(before), mib(peak), mib(peak - before), f"{seconds:.0f} s"]
    note(", ".join(row))
    return row


def rejection(run: Path) -> str:
    """The error of the same request with the default limits."""
    with serving(run) as server:
        status, text, _ = server.request("/v1/completions", LARGE)
    return f"{status}, {json.loads(text)['error']['message']}"


def answers(server: Server) -> list[Any]:
    """What the valid requests return, one after the other."""
    return [server.complete(**request)["choices"] for request in valid_requests()]


def malformed_requests(run: Path, warmup: int, more: int) -> list[list[str]]:
    """Resident memory after valid requests, after `warmup` malformed ones, after `more`, and at most."""
    with serving(run) as server:
        expected = answers(server)
        memory = [server.memory()]
        server.reset_peak()

        def send(numbers: range) -> None:
            for i in numbers:
                rng = random.Random(i)
                exchange(server.port, rng, malformed(rng, valid_requests()))

        for begin, end in ((0, warmup), (warmup, warmup + more)):
            run_threads(CLIENTS, lambda k, b=begin, e=end: send(range(b + k, e, CLIENTS)))  # type: ignore[misc]
            wait_for(lambda: server.metrics()["hero_running_texts"] == 0)
            memory.append(server.memory())
            note(f"{end} malformed requests: {mib(memory[-1])}")
        peak = server.memory("VmHWM")
        if answers(server) != expected:
            raise RuntimeError("answers changed after malformed requests")
    steps = ["40 valid requests", f"{warmup:,} malformed requests", f"{more:,} more"]
    rows = [[step, mib(size), mib(size - memory[0])] for step, size in zip(steps, memory, strict=True)]
    return [*rows, ["at most, after the valid requests", mib(peak), mib(peak - memory[0])]]


def mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"


def main() -> None:
    args = parser(__doc__, "serve-memory.md", rounds=1).parse_args()
    body = LARGE | {"n": 2} if args.quick else LARGE
    with tempfile.TemporaryDirectory() as folder:
        run = train(Path(folder))
        rows = [large_responses(run, clients, body) for clients in (1, 8)]
        rejected = rejection(run)
        malformed_rows = malformed_requests(run, *((24, 48) if args.quick else (2000, 10_000)))
    size = len(json.dumps(body)) / 1000
    write_page(
        args,
        "Memory of hero serve",
        [
            "`small-qwen3` with `hero.toml` in fp32, one CPU thread; resident memory of the server.",
            "",
            f"A request of {size:.0f} kB: 8 prompts of 500 ids, `n` {body['n']}, `echo`, `logprobs` 20, with the "
            "budgets raised (`--max-response` and the others):",
            "",
            *table("clients at once|response of each|before|peak|difference|time".split("|"), rows),
            "",
            f"With the default budgets: {rejected}.",
            "",
            f"Malformed requests of every kind of `tests/python/malformed_requests.py` from {CLIENTS} clients, with "
            "bodies of up to 4.2 MB; the valid requests have the same answers before and after:",
            "",
            *table(["after", "resident", "difference"], malformed_rows),
        ],
    )


if __name__ == "__main__":
    main()
