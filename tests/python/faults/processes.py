"""Ranks, each in a network namespace of its own, so that one can be cut off without breaking its connections."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from faults.runs import end, start, tail, wait
from program import ENVIRONMENT, PROGRAM

RANKS = 4


def command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


class Network:
    """A bridge in the namespace of this process and one namespace for each rank with the address
    10.77.0.RANK+1. Needs the privileges that `unshare --net --mount` gives."""

    def __init__(self) -> None:
        command("ip", "link", "set", "lo", "up")
        command("ip", "link", "add", "ranks", "type", "bridge")
        command("ip", "link", "set", "ranks", "up")
        self.holders = [subprocess.Popen(["unshare", "-n", "sleep", "infinity"]) for _ in range(RANKS)]
        for rank, holder in enumerate(self.holders):
            while os.stat(f"/proc/{holder.pid}/ns/net").st_ino == os.stat("/proc/self/ns/net").st_ino:
                pass
            command("ip", "link", "add", f"rank{rank}", "type", "veth", "peer", "name", "eth0",
                "netns", str(holder.pid))  # fmt: skip
            command("ip", "link", "set", f"rank{rank}", "up")
            for words in (
                ("link", "set", "lo", "up"),
                ("address", "add", f"10.77.0.{rank + 1}/24", "dev", "eth0"),
                ("link", "set", "eth0", "up"),
            ):
                command(*self.inside(rank), "ip", *words)
            self.connect(rank)

    def inside(self, rank: int) -> list[str]:
        return ["nsenter", "-t", str(self.holders[rank].pid), "-n"]

    def connect(self, rank: int) -> None:
        command("ip", "link", "set", f"rank{rank}", "master", "ranks")

    def disconnect(self, rank: int) -> None:
        """Packets from and to this rank are lost from now on, without any error."""
        command("ip", "link", "set", f"rank{rank}", "nomaster")

    def close(self) -> None:
        for holder in self.holders:
            holder.kill()
            holder.wait()


def start_ranks(
    network: Network, words: Sequence[Any], folder: Path, port: int, variables: dict[int, dict[str, str]]
) -> list[subprocess.Popen[bytes]]:
    """Four ranks; the output of rank r is appended to FOLDER/log.r. `variables`: by rank."""
    processes = []
    for rank in range(RANKS):
        launch = {
            "RANK": str(rank),
            "WORLD_SIZE": str(RANKS),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "10.77.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_WAIT_POLICY": "passive",
        }
        with (folder / f"log.{rank}").open("ab") as out:
            processes.append(
                subprocess.Popen(
                    [*network.inside(rank), PROGRAM, *map(str, words)],
                    env=ENVIRONMENT | launch | variables.get(rank, {}),
                    stdout=out,
                    stderr=out,
                )
            )
    return processes


_network: list[Network] = []


def network() -> Network:
    """The network of this process, made when first needed."""
    if not _network:
        _network.append(Network())
    return _network[0]


def close_network() -> None:
    while _network:
        _network.pop().close()


def run_all(words: Sequence[Any], ranks: int, folder: Path) -> tuple[list[int], str]:
    """Runs to the end; exit statuses and the end of the output."""
    if ranks == 1:
        log = folder / "log"
        return [wait(start(list(words), log), log)], tail(log)
    processes = start_ranks(network(), words, folder, 29500, {})
    try:
        statuses = [wait(process, folder / f"log.{rank}") for rank, process in enumerate(processes)]
    finally:
        end(processes)
    return statuses, "; ".join(tail(folder / f"log.{rank}") for rank in range(ranks))
