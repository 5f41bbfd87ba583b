"""Starts `hero` as a fork of a process that has loaded its libraries, the server of tests/fork_server: in some
ten milliseconds instead of half a second."""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

LIBRARY = "tests/libhero_fork_server.so"


class Child:
    """A process of the server; the interface of subprocess.Popen, as far as needed."""

    def __init__(self, words: list[str], reply: socket.socket) -> None:
        self.args, self._reply = words, reply
        self.pid = self._receive(60)
        assert self.pid > 0, words
        self.returncode: int | None = None

    def _receive(self, timeout: float) -> int:
        self._reply.settimeout(timeout)
        data = self._reply.recv(4, socket.MSG_WAITALL)
        assert len(data) == 4, f"{self.args}: the fork server has ended"
        return int(struct.unpack("i", data)[0])

    def wait(self, timeout: float) -> int:
        if self.returncode is None:
            try:
                self.returncode = self._receive(timeout)
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout) from None
            self._reply.close()
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it may have ended
                os.kill(self.pid, signal.SIGKILL)
            self.wait(60)


class ForkServer:
    def __init__(self, build: Path, environment: dict[str, str]) -> None:
        """`environment`: that of all processes."""
        self.environment = environment.copy()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [build / "program" / "hero"], env=environment | {"LD_PRELOAD": str(build / LIBRARY)}, stdin=theirs
        )
        theirs.close()

    def start(
        self,
        words: Iterable[object],
        cwd: Path | None,
        out: IO[bytes],
        err: IO[bytes],
        variables: dict[str, str],
    ) -> Child:
        """Starts `hero WORDS` without input. The variables must not be ones that libraries read when they are
        loaded."""
        command = ["hero", *map(str, words)]
        strings = [
            str(cwd or Path.cwd()),
            *(f"{name}={value}" for name, value in variables.items()),
            "",
            *command,
        ]
        ours, theirs = socket.socketpair()
        with open(os.devnull, "rb") as nothing, theirs:
            files = array.array("i", [f.fileno() for f in (nothing, out, err, theirs)])
            self._socket.sendmsg(
                [b"".join(os.fsencode(s) + b"\0" for s in strings)],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)],
            )
        return Child(command, ours)

    def run(
        self, words: Iterable[object], cwd: Path | None, timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Like subprocess.run with captured output."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = self.start(words, cwd, out, err, {})
            try:
                status = child.wait(timeout)
            finally:
                child.kill()
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(child.args, status, out.read(), err.read())
