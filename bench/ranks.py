"""Training with several processes on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rounds import PROGRAM


def free_port() -> int:
    """A currently free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def train_ranks(
    ranks: int, config: Path, data: Path, run: Path, settings: Mapping[str, Any], *more: Any
) -> None:
    """Runs `hero train`, with `more` options, with `ranks` processes over Gloo on loopback. SystemExit if one
    fails."""
    words = [PROGRAM, "train", "--config", config, "--data", data, "--run", run, "--eval.every=0"]
    words += [f"--{key}={value}" for key, value in settings.items()]
    words += more
    launch = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": free_port(), "GLOO_SOCKET_IFNAME": "lo", "OMP_WAIT_POLICY": "passive"}  # fmt: skip
    processes = []
    for rank in range(ranks):
        own = launch | {"RANK": rank, "LOCAL_RANK": rank} if ranks > 1 else {}
        environment = os.environ | {name: str(value) for name, value in own.items()}
        processes.append(
            subprocess.Popen([str(w) for w in words], env=environment, stderr=subprocess.DEVNULL)
        )
    if any([process.wait() for process in processes]):
        raise SystemExit(f"hero train {' '.join(str(w) for w in words[2:])}: a rank failed")
