"""A run of several processes on this machine, started as a launcher starts them."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import Any

from program import ENVIRONMENT, PROGRAM


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start(words: list[Any], ranks: int, log: Path, **changes: str) -> list[subprocess.Popen[bytes]]:
    """Starts `hero WORDS` `ranks` times; what rank r says goes to LOG.r."""
    port = free_port()
    processes = []
    for rank in range(ranks):
        environment = ENVIRONMENT | {
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_WAIT_POLICY": "passive",
        }
        with open(f"{log}.{rank}", "wb") as out:
            processes.append(
                subprocess.Popen(
                    [PROGRAM, *map(str, words)], env=environment | changes, stdout=out, stderr=out
                )
            )
    return processes


def said(log: Path, rank: int) -> str:
    return Path(f"{log}.{rank}").read_text()


def together(words: list[Any], ranks: int, log: Path, *, timeout: float = 300) -> list[int]:
    """`hero WORDS` by so many processes, to their ends; their exit statuses."""
    processes = start(words, ranks, log)
    try:
        return [process.wait(timeout) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()


def ran_together(words: list[Any], ranks: int, log: Path) -> None:
    """The same; all must succeed."""
    statuses = together(words, ranks, log)
    assert statuses == [0] * ranks, "\n".join(f"{r}: {s}: {said(log, r)}" for r, s in enumerate(statuses))
