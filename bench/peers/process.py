"""Engines of other projects, each loaded in a process of its own environment and stopped between measurements."""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from rounds import ROOT

HERE = Path(__file__).resolve().parent
TIMEOUT = 600  # seconds of loading, or of one request
PR_SET_PDEATHSIG = 1  # prctl(2)
# The project in every environment.
PEERS = {"vllm": "vLLM", "llama": "llama.cpp", "torchtitan": "torchtitan"}
ENGINES = ("vllm", "llama")
DTYPES = {"vllm": ("fp32", "bf16"), "llama": ("fp32", "bf16", "q8_0")}


def python(name: str) -> Path:
    """The interpreter of an environment of scripts/install_peers.sh, or of our own."""
    return ROOT / (f".venv-{name}/bin/python" if name in PEERS else ".venv/bin/python")


def installed(*names: str) -> list[str]:
    """Those whose environments are complete."""
    return [name for name in names if (ROOT / f".venv-{name}/requirements.sha256").exists()]


def missing(*names: str) -> list[str]:
    """A line for each that is not installed, for the page."""
    return [
        f"{PEERS[name]} is not measured: not installed (`scripts/install_peers.sh {name}`)."
        for name in names
        if name not in installed(name)
    ]


def end_with_parent() -> None:
    """In the child: it is killed when the benchmark ends, also while it is stopped."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Peer:
    """An engine that begins to load. Its threads may spin after a request: outside of `generate` a loaded engine is
    stopped. RuntimeError, with the end of its log, if it exits or does not respond in time."""

    def __init__(self, name: str, folder: Path, *words: Any) -> None:
        self._name = PEERS[name]
        self._log = tempfile.TemporaryFile()
        command = [python(name), HERE / f"run_{name}.py", folder, *words]
        self._process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            text=True, start_new_session=True, preexec_fn=end_with_parent,
        )  # fmt: skip
        self._responses = selectors.DefaultSelector()
        self._responses.register(self._process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]

    def wait_until_loaded(self) -> None:
        """Before the first `generate`."""
        self._response()
        os.killpg(self._process.pid, signal.SIGSTOP)

    def generate(self, prompts: list[list[int]], new: int) -> tuple[float, list[list[int]]]:
        """Seconds and the new ids of every prompt."""
        os.killpg(self._process.pid, signal.SIGCONT)
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"prompts": prompts, "new": new}) + "\n")
        self._process.stdin.flush()
        response = self._response()
        os.killpg(self._process.pid, signal.SIGSTOP)
        return response["seconds"], response["ids"]

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _response(self) -> dict[str, Any]:
        """The next line; ends the process on failure."""
        assert self._process.stdout
        line = self._process.stdout.readline() if self._responses.select(TIMEOUT) else ""
        if line:
            return json.loads(line)
        status = self._process.poll()
        self.close()
        self._log.seek(0)
        text = self._log.read().decode(errors="replace")[-2000:]
        reason = f"no response in {TIMEOUT} s" if status is None else f"exit status {status}"
        raise RuntimeError(f"{self._name}: {reason}: {text}")
