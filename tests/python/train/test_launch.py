"""Processes started by torchrun: restart after a kill, and two "hosts" (network namespaces connected by a
virtual link) that exit when the link goes down.

The program is `hero_loop TIMEOUT STEPS`, which runs collectives without a model; one test runs `hero train`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from program import ENVIRONMENT, PROGRAM, ROOT, metrics, run_hero, training

LOOP = ROOT / "build" / "tests" / "hero_loop"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--no-python"]
TEST_TIMEOUT = 90.0  # seconds
HOSTS = {"hero-a": "10.77.31.1", "hero-b": "10.77.31.2"}

pytestmark = pytest.mark.long


def program(timeout: float, steps: int) -> list[str]:
    """The command that every process runs."""
    return [str(LOOP), str(timeout), str(steps)]


class Launcher:
    """A running torchrun; it and its processes write to one log file."""

    def __init__(self, words: list[str], log: Path) -> None:
        self.log = log
        with log.open("w") as out:
            environment = ENVIRONMENT | {"HERO_TEST_LOG": str(log)}
            self.process = subprocess.Popen(words, env=environment, stdout=out, stderr=subprocess.STDOUT)

    def text(self) -> str:
        return self.log.read_text()

    def workers(self) -> list[int]:
        """PIDs of the processes that run `program`, in ascending order."""
        mark = f"HERO_TEST_LOG={self.log}\0".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                name, environment = (folder / "comm").read_text(), (folder / "environ").read_bytes()
            except OSError:  # the process may have exited
                continue
            if name.strip() in (LOOP.name, Path(PROGRAM).name) and mark in environment:
                found.append(int(folder.name))
        return sorted(found)

    def stop(self) -> None:
        """Kills all remaining processes."""
        for pid in [*self.workers(), self.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()


def wait_until(condition: Callable[[], object], *launchers: Launcher) -> None:
    """Waits until `condition` holds; fails with the launchers' output after TEST_TIMEOUT."""
    end = time.monotonic() + TEST_TIMEOUT
    while not condition():
        assert time.monotonic() < end, "\n".join(launcher.text() for launcher in launchers)
        time.sleep(0.05)


def error_messages(launcher: Launcher) -> list[str]:
    """The error messages of the processes."""
    return re.findall(r"hero: (.*)", launcher.text())


def test_restart_ignores_old_store_entries(tmp_path: Path) -> None:
    """After a worker is killed, torchrun restarts all workers with the same store, and they finish."""
    words = [*TORCHRUN, "--standalone", "--nproc-per-node", "3", "--max-restarts", "1", *program(4, 200)]
    launcher = Launcher(words, tmp_path / "log")
    try:
        wait_until(lambda: launcher.text().count("step 20\n") >= 3, launcher)
        os.kill(launcher.workers()[1], signal.SIGKILL)
        assert launcher.process.wait(TEST_TIMEOUT) == 0, launcher.text()
        assert launcher.text().count("step 200\n") == 3, launcher.text()
    finally:
        launcher.stop()


def ip(*words: str) -> None:
    """Runs an `ip` command, which must succeed."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@contextmanager
def two_hosts() -> Iterator[None]:
    """Two namespaces connected by a link, with 5 ms and 100 Mbit/s if the kernel supports netem."""
    if not shutil.which("ip"):
        pytest.skip("needs ip (iproute2)")
    a, b = HOSTS
    try:
        for host in HOSTS:
            ip("netns", "add", host)
        ip("link", "add", a, "netns", a, "type", "veth", "peer", "name", b, "netns", b)
        for host, address in HOSTS.items():
            ip("-n", host, "address", "add", f"{address}/24", "dev", host)
            ip("-n", host, "link", "set", "lo", "up")
            ip("-n", host, "link", "set", host, "up")
            delay = ["tc", "-n", host, "qdisc", "add", "dev", host, "root"]
            delay += ["netem", "delay", "5ms", "rate", "100mbit"]
            if shutil.which("tc"):
                subprocess.run(delay, check=False, capture_output=True)
        yield
    except subprocess.CalledProcessError as error:
        pytest.skip(f"needs network namespaces: {error.stderr.strip()}")
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "delete", host], check=False, capture_output=True)


def on_host(host: str, log: Path, command: list[str], restarts: int = 0) -> Launcher:
    """torchrun with two processes on one of the two hosts."""
    first, address = next(iter(HOSTS.values())), HOSTS[host]
    words = ["ip", "netns", "exec", host, "env", f"GLOO_SOCKET_IFNAME={host}", *TORCHRUN]
    words += ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-id", "test", "--rdzv-backend", "c10d"]
    words += ["--rdzv-endpoint", f"{first}:29411", "--local-addr", address]
    words += ["--rdzv-conf", f"is_host={int(address == first)}", "--max-restarts", str(restarts)]
    return Launcher([*words, *command], log)


def test_restart_of_two_hosts(tmp_path: Path) -> None:
    """After a worker is killed on one host, both torchruns restart their workers, which finish."""
    with two_hosts():
        launchers = [on_host(host, tmp_path / host, program(4, 200), restarts=3) for host in HOSTS]
        try:
            wait_until(lambda: all(one.text().count("step 20\n") == 2 for one in launchers), *launchers)
            os.kill(launchers[1].workers()[0], signal.SIGKILL)
            wait_until(lambda: all(one.process.poll() is not None for one in launchers), *launchers)
            for launcher in launchers:
                assert launcher.process.returncode == 0, launcher.text()
                assert launcher.text().count("step 200\n") == 2, launcher.text()
        finally:
            for launcher in launchers:
                launcher.stop()


def test_training_on_two_hosts(data: Path, tmp_path: Path) -> None:
    """Pipeline and expert parallelism over two hosts match one process."""
    settings = {
        "router.kind": "hero",
        "router.history": "global",
        "model.num_hidden_layers": 4,
        "train.dtype": "fp64",
        "train.sequence": 32,
        "train.micro_batch": 1,
        "train.global_batch": 4,
        "parallel.timeout": 60,
    }
    alone, run = tmp_path / "alone", tmp_path / "run"
    run_hero(*training(alone, data, settings))
    more = {"parallel.pipeline": 2, "parallel.expert": 2}
    command = ["--", PROGRAM, *map(str, training(run, data, settings | more))]
    with two_hosts():
        launchers = [on_host(host, tmp_path / host, command) for host in HOSTS]
        try:
            wait_until(lambda: all(one.process.poll() is not None for one in launchers), *launchers)
            for launcher in launchers:
                assert launcher.process.returncode == 0, launcher.text()
        finally:
            for launcher in launchers:
                launcher.stop()
    for key in ("loss", "grad_norm"):
        expected = [line[key] for line in metrics(alone)]
        assert [line[key] for line in metrics(run)] == pytest.approx(expected, rel=1e-9), key


def test_broken_link_ends_both_hosts(tmp_path: Path) -> None:
    """The processes of both hosts exit and report the missing rank, step and operation."""
    with two_hosts():
        launchers = [on_host(host, tmp_path / host, program(4, 1_000_000)) for host in HOSTS]
        try:
            wait_until(lambda: all(one.text().count("step 100\n") == 2 for one in launchers), *launchers)
            ip("-n", "hero-b", "link", "set", "hero-b", "down")
            # At least one message per host: torchrun stops the remaining workers of a host after the first
            # exits.
            wait_until(lambda: all(error_messages(one) for one in launchers), *launchers)
            wait_until(lambda: not any(one.workers() for one in launchers), *launchers)
            # torchrun chooses the host of ranks 0 and 1; the store is on the first host.
            lost = (
                r"rank \d \(host \S+, pid \d+\) has sent no heartbeat for [\d.]+ s; "
                r"it was at step \d+(?: in |, computing after )all_\w+ over all ranks"
            )
            where = r"step \d+(?:: | in )all_\w+ over all ranks, operation \d+"
            without = r"the launcher's store at \S+ has not responded for [\d.]+ s"
            for message in error_messages(launchers[0]):
                assert re.search(lost, message), message
            for message in error_messages(launchers[1]):
                assert re.search(where, message), message
                assert re.search(f"{lost}|{without}", message), message
        finally:
            for launcher in launchers:
                launcher.stop()
