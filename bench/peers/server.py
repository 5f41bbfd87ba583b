"""HTTP servers of completions, ours and others', and a load of clients."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from peers.process import TIMEOUT, end_with_parent
from rounds import ROOT

sys.path.append(str(ROOT / "tests/python"))
from serving import run_threads  # noqa: E402


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Server:
    """A server's process group, stopped outside of `load`: its threads may spin. RuntimeError, with the end of its
    log, if it exits or does not get ready in time."""

    def __init__(self, command: Sequence[Any], variables: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [str(word) for word in (*command, "--port", self.port)], stdout=self._log, stderr=self._log,
            env=os.environ | (variables or {}), start_new_session=True, preexec_fn=end_with_parent,
        )  # fmt: skip
        begin = time.monotonic()
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() - begin > TIMEOUT:
                self.close()
                self._log.seek(0)
                text = self._log.read().decode(errors="replace")[-2000:]
                raise RuntimeError(f"{command[0]}: not ready after {time.monotonic() - begin:.0f} s: {text}")
            time.sleep(0.2)
        os.killpg(self._process.pid, signal.SIGSTOP)

    def load(self, requests: Sequence[Sequence[dict[str, Any]]]) -> tuple[float, float]:
        """Sends the requests of every client, one after the other on one connection; new tokens per second of all, and
        the median seconds of a request."""
        seconds: list[float] = []

        def client(i: int) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
            for body in requests[i]:
                begin = time.perf_counter()
                self._complete(connection, body)
                seconds.append(time.perf_counter() - begin)
            connection.close()

        os.killpg(self._process.pid, signal.SIGCONT)
        begin = time.perf_counter()
        run_threads(len(requests), client)
        whole = time.perf_counter() - begin
        os.killpg(self._process.pid, signal.SIGSTOP)
        tokens = sum(body["max_tokens"] for bodies in requests for body in bodies)
        return tokens / whole, statistics.median(seconds)

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def _complete(self, connection: http.client.HTTPConnection, body: dict[str, Any]) -> None:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {text[:500]}")
        found = json.loads(text)["usage"]["completion_tokens"]
        if found != body["max_tokens"]:
            raise RuntimeError(f"generated {found} ids, expected {body['max_tokens']}")
