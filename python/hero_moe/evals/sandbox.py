"""Runs programs that a model wrote: in a process of their own, with limits, inside bubblewrap.

Inside there is no network, no home, no /etc and no process of others; the system's files are read-only, /tmp
is private and small, and new processes are refused. A program has passed when it ran to its end: then, and
only then, a random word comes back that it was not told before. Leaving early, with whatever status, does not
bring it back. A program that looks for the word on purpose, among its descriptors, is not stopped.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

UNSAFE_VARIABLE = "HERO_MOE_BENCH_UNSAFE_CODE"
"""Set to 1: programs run without bubblewrap, with the limits alone."""

PASSED = "passed"
_STOPPED = "stopped by "

# Sets the limits, runs the program, brings the word. What it calls then is bound before the program runs.
_RUNNER = """
import json, os, resource, sys
def main(read=os.read, write=os.write, leave=os._exit, error=BaseException, kind=type):
    setup = json.loads(sys.stdin.buffer.readline())
    report, word = setup["descriptors"]
    for name, value in setup["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    try:
        exec(compile(setup["program"], "program.py", "exec"), {"__name__": "__main__"})
    except error as problem:
        write(report, ("stopped by " + kind(problem).__name__).encode())
        leave(1)
    write(report, read(word, 64))
    leave(0)
main()
"""


@dataclass(frozen=True)
class Limits:
    """What one program may use."""

    seconds: float = 20.0
    """Of the clock."""
    cpu_seconds: int = 5
    memory: int = 1 << 30
    """Bytes of address space."""
    file: int = 1 << 20
    """Bytes of one file; with bubblewrap /tmp holds 16 times as much."""
    processes: int = 64
    """Threads, and without bubblewrap processes, of the user."""


def run_program(program: str, limits: Limits = Limits()) -> str:
    """Runs a Python program to its end.

    Returns:
        `PASSED`, or in words why not: "stopped by AssertionError", "out of time", "killed" (by a limit),
        "left with status 0" (before its end), "wrote to the report".

    Raises:
        ValueError: where there is no sandbox, see `check_sandbox`.
    """
    check_sandbox()
    return _run(program, limits, sandboxed=not _unsafe())


def check_sandbox() -> None:
    """That programs can be run: bubblewrap works here, or the user wants none. ValueError otherwise."""
    if _unsafe():
        return
    problem = _probe()
    if problem:
        expected = "bubblewrap (`bwrap`), or --unsafe-code-without-sandbox"
        found = f"found no sandbox ({problem})"
        raise ValueError(f"humaneval: {found}, expected {expected} ({UNSAFE_VARIABLE}=1)")


def _unsafe() -> bool:
    return os.environ.get(UNSAFE_VARIABLE) == "1"


@lru_cache(maxsize=1)
def _probe() -> str | None:
    """Why there is no sandbox; None where there is."""
    if platform.machine() not in _CALLS:
        return f"system calls of {platform.machine()} are not known here"
    if shutil.which("bwrap") is None:
        return "no bwrap"
    filter_end = _filled_pipe(_filter())
    try:
        command = [*_bubblewrap(Limits(), filter_end), _PYTHON, *_FLAGS, "-c", "print('ready')"]
        done = subprocess.run(
            command, pass_fds=(filter_end,), env=_ENVIRONMENT, capture_output=True, text=True, check=False
        )
    finally:
        os.close(filter_end)
    if done.stdout != "ready\n":
        return " ".join(done.stderr.split()) or f"status {done.returncode}"
    return None


def _run(program: str, limits: Limits, sandboxed: bool) -> str:
    word = secrets.token_hex(16).encode()
    report, report_end = os.pipe()
    ends = (report_end, _filled_pipe(word), _filled_pipe(_filter() if sandboxed else b""))
    setup = {"program": program, "limits": _limits(limits), "descriptors": ends[:2]}
    with (
        open(report, "rb", buffering=0) as reported,
        tempfile.TemporaryFile() as source,
        tempfile.TemporaryDirectory(prefix="hero-moe-program-") as folder,
    ):
        source.write(json.dumps(setup).encode() + b"\n")
        source.seek(0)
        try:
            process = subprocess.Popen(
                [*(_bubblewrap(limits, ends[2]) if sandboxed else []), _PYTHON, *_FLAGS, "-c", _RUNNER],
                stdin=source,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env=_ENVIRONMENT | {"HOME": folder},
                pass_fds=ends,
                start_new_session=True,
            )
        finally:
            for end in ends:
                os.close(end)
        try:
            status = process.wait(limits.seconds)
        except subprocess.TimeoutExpired:
            return "out of time"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # bubblewrap's others die with it
            process.wait()
        os.set_blocking(report, False)
        return _verdict(status, reported.read(_REPORT) or b"", word)


def _verdict(status: int, report: bytes, word: bytes) -> str:
    if report == word:
        return PASSED
    if status in _KILLED:
        return "killed"
    if not report:
        return f"left with status {status}"
    text = report.decode(errors="replace")
    name = text.removeprefix(_STOPPED)
    return text if text != name and name.isidentifier() else "wrote to the report"


def _limits(limits: Limits) -> dict[str, int]:
    return {
        "RLIMIT_CPU": limits.cpu_seconds,
        "RLIMIT_AS": limits.memory,
        "RLIMIT_FSIZE": limits.file,
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_CORE": 0,
    }


def _filled_pipe(content: bytes) -> int:
    """The end to read from; the content fits into a pipe."""
    end, begin = os.pipe()
    os.write(begin, content)
    os.close(begin)
    return end


def _bubblewrap(limits: Limits, filter_end: int) -> list[str]:
    command = [shutil.which("bwrap") or "bwrap", "--die-with-parent"]
    command += ["--unshare-all", "--unshare-user", "--disable-userns"]
    command += ["--new-session", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"]
    command += ["--ro-bind", "/usr", "/usr"]
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(name):
            command += ["--symlink", os.readlink(name), name]
        elif os.path.isdir(name):
            command += ["--ro-bind", name, name]
    for folder in {sys.base_prefix, str(Path(_PYTHON).parent)}:
        if not Path(folder).is_relative_to("/usr"):
            command += ["--ro-bind", folder, folder]
    command += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    command += ["--size", str(16 * limits.file), "--tmpfs", "/tmp", "--remount-ro", "/"]
    return [*command, "--chdir", "/tmp", "--setenv", "HOME", "/tmp", "--seccomp", str(filter_end), "--"]


def _filter() -> bytes:
    """A seccomp program: no new processes (threads may be), no sockets, no namespaces, no tracing."""
    architecture, clone, refused = _CALLS[platform.machine()]
    load, equal, above, has, give = 0x20, 0x15, 0x35, 0x45, 0x06
    # Each: what it does, where it goes then and otherwise ("": on), and with which number.
    program = [
        (load, "", "", 4),  # the architecture
        (equal, "", "kill", architecture),
        (load, "", "", 0),  # the system call
        (above, "refuse", "", 0x40000000),  # x32
        (equal, "unknown", "", 435),  # clone3: glibc makes its threads by clone then
        *((equal, "refuse", "", call) for call in refused),
        (equal, "", "allow", clone),
        (load, "", "", 16),  # clone's flags
        (has, "allow", "refuse", 0x10000),  # CLONE_THREAD
    ]
    ends = {"allow": 0x7FFF0000, "refuse": 0x00050001, "unknown": 0x00050026, "kill": 0x80000000}
    labels = {label: len(program) + number for number, label in enumerate(ends)}
    code = [
        struct.pack("<HBBI", does, *(labels[to] - at - 1 if to else 0 for to in (then, otherwise)), number)
        for at, (does, then, otherwise, number) in enumerate(program)
    ]
    return b"".join(code + [struct.pack("<HBBI", give, 0, 0, action) for action in ends.values()])


_PYTHON = os.path.realpath(sys.executable)
_FLAGS = ("-I", "-S", "-B")
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
# AUDIT_ARCH, clone, and what is refused: fork, vfork, socket, ptrace, mount, unshare, setns, keyctl, bpf,
# userfaultfd, perf_event_open, io_uring_setup.
_CALLS = {
    "x86_64": (0xC000003E, 56, (57, 58, 41, 101, 165, 272, 308, 250, 321, 323, 298, 425)),
    "aarch64": (0xC00000B7, 220, (198, 117, 40, 97, 268, 219, 280, 282, 241, 425)),
}
_REPORT = 512  # bytes of a report that are read
# By SIGKILL or SIGXCPU, as Python and as bubblewrap say it.
_KILLED = {-signal.SIGKILL, -signal.SIGXCPU, 128 + signal.SIGKILL, 128 + signal.SIGXCPU}
