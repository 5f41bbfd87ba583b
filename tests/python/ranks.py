"""Runs with several processes on this machine, with the environment of a launcher."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fork_server import Child, ForkServer
from program import ENVIRONMENT, PROGRAM, fork_server, hero, run_hero
from random_cases import expect_success


def free_port() -> int:
    """A currently free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def launch_variables(ranks: int) -> list[dict[str, str]]:
    """What a launcher sets for every rank."""
    port = str(free_port())
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "GLOO_SOCKET_IFNAME": "lo",
        }
        for rank in range(ranks)
    ]


def start(words: list[Any], ranks: int, log: Path, **changes: str) -> list[subprocess.Popen[bytes]]:
    """Starts `hero WORDS` `ranks` times; the output of rank r goes to LOG.r."""
    processes = []
    for rank, variables in enumerate(launch_variables(ranks)):
        environment = ENVIRONMENT | variables | {"OMP_WAIT_POLICY": "passive"} | changes
        with open(f"{log}.{rank}", "wb") as out:
            processes.append(
                subprocess.Popen([PROGRAM, *map(str, words)], env=environment, stdout=out, stderr=out)
            )
    return processes


def start_forks(server: ForkServer, words: list[Any], ranks: int, log: Path) -> list[Child]:
    """Like `start`."""
    children = []
    for rank, variables in enumerate(launch_variables(ranks)):
        with open(f"{log}.{rank}", "wb") as out:
            children.append(server.start(words, None, out, out, variables))
    return children


def rank_log(log: Path, rank: int) -> str:
    return Path(f"{log}.{rank}").read_text()


def run_ranks(words: list[Any], ranks: int, log: Path, *, timeout: float = 300) -> list[int]:
    """Runs `hero WORDS` with `ranks` processes and returns their exit statuses."""
    server = fork_server(words)
    processes: Sequence[Child | subprocess.Popen[bytes]] = (
        start_forks(server, words, ranks, log) if server else start(words, ranks, log)
    )
    try:
        return [process.wait(timeout) for process in processes]
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()


def run_ranks_checked(words: list[Any], ranks: int, log: Path) -> None:
    """Like `run_ranks`, and asserts that all ranks succeed."""
    statuses = run_ranks(words, ranks, log)
    assert statuses == [0] * ranks, "\n".join(f"{r}: {s}: {rank_log(log, r)}" for r, s in enumerate(statuses))


def run_on(words: list[Any], ranks: int, log: Path) -> None:
    """Like `run_ranks_checked`; one rank is a process without a launcher."""
    if ranks == 1:
        run_hero(*words)
    else:
        run_ranks_checked(words, ranks, log)


def expect_ranks_succeed(words: list[Any], ranks: int, log: Path, keys: Iterable[str]) -> None:
    """Runs `hero WORDS` with `ranks` processes, one without a launcher; `expect_success` of the first that
    fails. Every rank reports status 2 in one line; for other failures its log is the best."""
    if ranks == 1:
        done = hero(*words)
        return expect_success(done.returncode, done.stderr, keys)
    statuses = run_ranks(words, ranks, log, timeout=120)
    failed = [rank for rank, status in enumerate(statuses) if status != 0]
    if failed:
        expect_success(statuses[failed[0]], rank_log(log, failed[0]).strip().splitlines()[-1], keys)
    return None
