"""`hero serve` as a process with an HTTP client."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from program import ENVIRONMENT, PROGRAM, run_hero, training

PROMPT = "def index_1(node):\n\treturn "
# More sequences than a test can wait for.
ENDLESS = {"prompt": [PROMPT] * 8, "n": 128, "max_tokens": 100, "ignore_eos": True}


def served_run(folder: Path, data: Path) -> Path:
    """A HERO model in fp64, trained for 30 steps; samples do not depend on the summation order."""
    settings = {"router.kind": "hero", "train.dtype": "fp64", "train.steps": 30, "optim.lr": 3e-3}
    run_hero(*training(folder, data, settings))
    return folder


class Server:
    """A running server; `request` opens a new connection."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port
        self.url = f"http://127.0.0.1:{port}"

    def connect(self, timeout: float = 60) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(
        self, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str
    ) -> tuple[int, str, http.client.HTTPMessage]:
        """GET, or POST of `body` as JSON or of raw bytes; returns status, text and headers of the
        response."""
        connection = self.connect()
        data = json.dumps(body).encode() if raw is None and body is not None else raw
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        if data is not None:
            names.setdefault("Content-Type", "application/json")
        connection.request("GET" if data is None else "POST", path, data, names)
        response = connection.getresponse()
        found = response.status, response.read().decode(), response.headers
        connection.close()
        return found

    def complete(self, prompt: Any, **options: Any) -> dict[str, Any]:
        """The response of /v1/completions, which must succeed."""
        status, text, _ = self.request("/v1/completions", {"prompt": prompt, **options})
        assert status == 200, text
        return json.loads(text)

    def metrics(self) -> dict[str, float]:
        """Every sample by name with labels."""
        return parse_metrics(self.request("/metrics")[1])

    def memory(self, name: str = "VmRSS") -> int:
        """Resident memory in bytes; "VmHWM": its peak since `reset_peak`."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) << 10  # type: ignore[index]

    def reset_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=60)


SAMPLE = re.compile(r'([a-z_]+)((?:\{(?:[a-z_]+="[^"\\\n]*",?)+\})?) (\S+)')


def parse_metrics(text: str) -> dict[str, float]:
    """Samples in the Prometheus text format; every family must have HELP and TYPE."""
    assert text.endswith("\n")
    found: dict[str, float] = {}
    family = kind = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split()[2]
        elif line.startswith("# TYPE "):
            assert line.split()[2] == family
            kind = line.split()[3]
            assert kind in ("counter", "gauge", "histogram")
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            ends = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            assert match[1] in [family + end for end in ends], line
            assert match[1] + match[2] not in found
            found[match[1] + match[2]] = float(match[3])
    return found


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


@contextmanager
def serving(folder: Path, *words: Any) -> Iterator[Server]:
    """A server of a model folder on a free port; asserts exit status 0 unless it has already exited."""
    command = [PROGRAM, "serve", str(folder), "--port", "0", *map(str, words)]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        line = process.stdout.readline()
        match = re.fullmatch(r"listening on http://127\.0\.0\.1:(\d+)\n", line)
        assert match, line
        server = Server(process, int(match[1]))
        yield server
        if process.poll() is None:
            assert server.stop() == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits until `condition` holds; fails after 30 seconds."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def send_raw(port: int, data: bytes, *, timeout: float = 30, end: bytes | None = None) -> bytes:
    """Sends raw bytes, which may be invalid HTTP, and returns everything until the server closes. With `end`, keeps
    the sending side open and returns as soon as the answer ends with it."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as s:
        answer = b""
        try:
            s.sendall(data)
            if end is None:
                s.shutdown(socket.SHUT_WR)
            while not (end and answer.endswith(end)) and (piece := s.recv(65536)):
                answer += piece
        except ConnectionError:
            pass
        return answer


def events(text: str) -> list[Any]:
    """The objects of a server-sent event stream, which must end with [DONE]."""
    *lines, done, end = text.split("\n\n")
    assert done == "data: [DONE]" and end == ""
    return [json.loads(line.removeprefix("data: ")) for line in lines]
