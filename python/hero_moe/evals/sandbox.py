"""Runs model-generated programs in a separate process, with resource limits, inside bubblewrap.

The sandbox has its own namespaces with no network, no home, no /etc and no other processes; system files
are read-only, /tmp is private and small. New processes, keyrings and System V and POSIX IPC are denied. A
program passes if it runs to its end: only then the runner reports a random token that the program does not
receive. Exiting early, with any status, does not report it. A program that deliberately searches its
descriptors for the token is not stopped.
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
"""Set to 1 to run programs without bubblewrap, with resource limits only."""

PASSED = "passed"
_RAISED = "raised "

# Sets the limits, runs the program, reports the token. Its functions are bound before the program runs.
_RUNNER = """
import json, os, resource, sys
def main(read=os.read, write=os.write, leave=os._exit, error=BaseException, kind=type):
    setup = json.loads(sys.stdin.buffer.readline())
    report, token = setup["descriptors"]
    for name, value in setup["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    try:
        exec(compile(setup["program"], "program.py", "exec"), {"__name__": "__main__"})
    except error as problem:
        write(report, ("raised " + kind(problem).__name__).encode())
        leave(1)
    write(report, read(token, 64))
    leave(0)
main()
"""


@dataclass(frozen=True)
class Limits:
    """Resource limits of one program."""

    seconds: float = 20.0
    """Wall-clock time."""
    cpu_seconds: int = 5
    memory: int = 1 << 30
    """Bytes of address space."""
    file: int = 1 << 20
    """Bytes of one file; with bubblewrap /tmp holds 16 times as much."""
    processes: int = 64
    """Threads of the user, and processes without bubblewrap."""


def run_program(program: str, limits: Limits = Limits()) -> str:
    """Runs a Python program to its end.

    Returns:
        `PASSED`, or the reason for failure: "raised AssertionError", "timed out", "killed" (by a limit),
        "exited with status 0" (before its end), "wrote to the report pipe".

    Raises:
        ValueError: without a sandbox, see `check_sandbox`.
    """
    check_sandbox()
    return _run(program, limits, sandboxed=not _unsafe())


def check_sandbox() -> None:
    """Raises ValueError unless bubblewrap works here or the user disabled it."""
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
    """The reason why there is no sandbox, or None."""
    if platform.machine() not in _CALLS:
        return f"unsupported architecture {platform.machine()}"
    if shutil.which("bwrap") is None:
        return "no bwrap"
    filter_pipe = _pipe_with(_filter())
    try:
        command = [*_bubblewrap(Limits(), filter_pipe), _PYTHON, *_FLAGS, "-c", "print('ready')"]
        done = subprocess.run(
            command, pass_fds=(filter_pipe,), env=_ENVIRONMENT, capture_output=True, text=True, check=False
        )
    finally:
        os.close(filter_pipe)
    if done.stdout != "ready\n":
        return " ".join(done.stderr.split()) or f"status {done.returncode}"
    return None


def _run(program: str, limits: Limits, sandboxed: bool) -> str:
    token = secrets.token_hex(16).encode()
    report, report_end = os.pipe()
    ends = (report_end, _pipe_with(token), _pipe_with(_filter() if sandboxed else b""))
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
            return "timed out"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # bubblewrap's children die with it
            process.wait()
        os.set_blocking(report, False)
        return _verdict(status, reported.read(_REPORT) or b"", token)


def _verdict(status: int, report: bytes, token: bytes) -> str:
    if report == token:
        return PASSED
    if status in _KILL_STATUSES:
        return "killed"
    if not report:
        return f"exited with status {status}"
    text = report.decode(errors="replace")
    name = text.removeprefix(_RAISED)
    return text if text != name and name.isidentifier() else "wrote to the report pipe"


def _limits(limits: Limits) -> dict[str, int]:
    return {
        "RLIMIT_CPU": limits.cpu_seconds,
        "RLIMIT_AS": limits.memory,
        "RLIMIT_FSIZE": limits.file,
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_CORE": 0,
    }


def _pipe_with(content: bytes) -> int:
    """The read end of a pipe with `content`, which fits into the pipe buffer."""
    end, begin = os.pipe()
    os.write(begin, content)
    os.close(begin)
    return end


def _bubblewrap(limits: Limits, filter_pipe: int) -> list[str]:
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
    if os.path.exists("/proc/keys"):  # lists the keyrings of the session, which has no namespace
        command += ["--ro-bind", "/dev/null", "/proc/keys"]
    command += ["--size", str(16 * limits.file), "--tmpfs", "/tmp", "--remount-ro", "/"]
    return [*command, "--chdir", "/tmp", "--setenv", "HOME", "/tmp", "--seccomp", str(filter_pipe), "--"]


def _filter() -> bytes:
    """A seccomp program: no new processes (threads are allowed), sockets, namespaces, tracing, keyrings or IPC.

    bubblewrap separates IPC objects from those outside, but their memory does not count towards the limits.
    """
    architecture, clone, denied = _CALLS[platform.machine()]
    load, equal, above, has, give = 0x20, 0x15, 0x35, 0x45, 0x06
    # Each: opcode, jump targets if true and false ("": next instruction), operand.
    program = [
        (load, "", "", 4),  # the architecture
        (equal, "", "kill", architecture),
        (load, "", "", 0),  # the system call
        (above, "deny", "", 0x40000000),  # x32
        (equal, "unknown", "", 435),  # clone3: glibc then creates threads with clone
        *((equal, "deny", "", call) for call in denied),
        (equal, "", "allow", clone),
        (load, "", "", 16),  # clone's flags
        (has, "allow", "deny", 0x10000),  # CLONE_THREAD
    ]
    ends = {"allow": 0x7FFF0000, "deny": 0x00050001, "unknown": 0x00050026, "kill": 0x80000000}
    labels = {label: len(program) + number for number, label in enumerate(ends)}
    code = [
        struct.pack("<HBBI", does, *(labels[to] - at - 1 if to else 0 for to in (then, otherwise)), number)
        for at, (does, then, otherwise, number) in enumerate(program)
    ]
    return b"".join(code + [struct.pack("<HBBI", give, 0, 0, action) for action in ends.values()])


_PYTHON = os.path.realpath(sys.executable)
_FLAGS = ("-I", "-S", "-B")
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
# AUDIT_ARCH, clone, and denied calls: fork and vfork (not on aarch64), socket, ptrace, mount, unshare, setns, bpf,
# userfaultfd, perf_event_open, io_uring_setup, add_key, request_key, keyctl, shmget, semget, msgget, mq_open.
_CALLS = {
    "x86_64": (0xC000003E, 56, (
        57, 58, 41, 101, 165, 272, 308, 321, 323, 298, 425, 248, 249, 250, 29, 64, 68, 240)),
    "aarch64": (0xC00000B7, 220, (
        198, 117, 40, 97, 268, 280, 282, 241, 425, 217, 218, 219, 194, 190, 186, 180)),
}  # fmt: skip
_REPORT = 512  # maximum bytes read from a report
# SIGKILL or SIGXCPU, as reported by Python and by bubblewrap.
_KILL_STATUSES = {-signal.SIGKILL, -signal.SIGXCPU, 128 + signal.SIGKILL, 128 + signal.SIGXCPU}
