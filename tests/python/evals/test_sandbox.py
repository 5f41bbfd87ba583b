"""The HumanEval sandbox: passing programs and the limits of hostile ones."""

from __future__ import annotations

import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from hero_moe.evals import humaneval, sandbox
from hero_moe.evals.sandbox import PASSED, UNSAFE_VARIABLE, Limits, check_sandbox, run_program

LIMITS = Limits(seconds=30, cpu_seconds=1, memory=1 << 28)
WORKS = sandbox._probe() is None
needs_bubblewrap = pytest.mark.skipif(not WORKS, reason=f"no sandbox here: {sandbox._probe()}")

# Programs and their verdicts, with and without bubblewrap.
ANYWHERE = {
    "ends": ("x = 1", PASSED),
    "main": ("assert __name__ == '__main__'", PASSED),
    "modules": ("import math, re, hashlib, typing, collections, itertools", PASSED),
    "threads": ("import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()", PASSED),
    "prints": ("import sys\nprint('x' * (1 << 22))\nprint('y' * (1 << 22), file=sys.stderr)", PASSED),
    "fails": ("assert 1 == 2", "raised AssertionError"),
    "no program": ("def f(:", "raised SyntaxError"),
    "exit": ("import sys\nsys.exit(0)", "raised SystemExit"),
    "quits at once": ("import os\nos._exit(0)", "exited with status 0"),
    "raises exit": ("raise SystemExit(0)", "raised SystemExit"),
    "reads on": ("import sys\nsys.stdin.read()", PASSED),
    "loops": ("while True: pass", "killed"),
    "loops through signals": (
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        "killed",
    ),
    "eats memory": ("x = [0]\nwhile True: x += x", "raised MemoryError"),
    "raises limits": (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))",
        "raised ValueError",
    ),
    "large file": ("open('x', 'w').write('a' * (2 << 20))", "raised OSError"),
    "patches what comes after": (
        "import builtins, os, sys\nos.write = os._exit = os.read = builtins.exec = print\nsys.exit = None",
        PASSED,
    ),
    "patches, and leaves": ("import os\nexit = os._exit\nassert_ = None\nexit(0)", "exited with status 0"),
    "writes to every descriptor": (
        "import os\nfor i in range(3, 64):\n try: os.write(i, b'passed')\n except OSError: pass",
        "wrote to the report pipe",
    ),
    "writes, and leaves": (
        "import os\nfor i in range(3, 64):\n try: os.write(i, b'passed')\n except OSError: pass\nos._exit(0)",
        "wrote to the report pipe",
    ),
    "lies about its end": ("class passed(Exception): pass\nraise passed", "raised passed"),
}


def denied(call: str) -> tuple[str, str]:
    """A program whose call of libc fails with EPERM."""
    libc = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    return f"{libc}assert libc.{call} == -1 and ctypes.get_errno() == 1", PASSED


ADD_KEY = {"x86_64": 248, "aarch64": 217}.get(platform.machine())
SANDBOXED = {
    "forks": ("import os\nwhile True: os.fork()", "raised PermissionError"),
    "starts a program": ("import subprocess\nsubprocess.run(['/bin/true'])", "raised PermissionError"),
    "many threads": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()",
        "raised RuntimeError",
    ),
    "passwords": ("open('/etc/passwd')", "raised FileNotFoundError"),
    "network": ("import socket\nsocket.create_connection(('127.0.0.1', 80))", "raised PermissionError"),
    "system": ("open('/usr/lib/x', 'w')", "raised OSError"),
    "root": ("open('/x', 'w')", "raised OSError"),
    "shared memory": ("open('/dev/shm/x', 'w')", "raised OSError"),
    "System V shared memory": denied("shmget(0, 4096, 0o1600)"),
    "System V semaphores": denied("semget(0, 1, 0o1600)"),
    "System V messages": denied("msgget(0, 0o1600)"),
    "POSIX messages": denied("mq_open(b'/x', 0o102, 0o600, None)"),
    "keyring of the session": denied(f"syscall({ADD_KEY}, b'user', b'hero', b'x', 1, -3)"),
    "names of keys": ("try: assert not open('/proc/keys').read()\nexcept OSError: pass", PASSED),
    "tracing": denied("ptrace(16, 1, None, None)"),
    "network devices": (
        "names = [line.split()[0] for line in open('/proc/net/dev').readlines()[2:]]\nassert names == ['lo:']",
        PASSED,
    ),
    "root of the init process": ("import os\nassert not {'home', 'etc'} & set(os.listdir('/proc/1/root'))", PASSED),
    "descriptors": (
        "import os\nfound = os.listdir('/proc/self/fd')\nassert len(found) == 6, found  # 1 is this folder's",
        PASSED,
    ),
    "tmp": ("open('/tmp/x', 'w').write('a')\nassert open('/tmp/x').read() == 'a'", PASSED),
    "tmp is new": ("import os\nassert os.listdir('/tmp') == []", PASSED),
    "many files": ("for i in range(40): open(f'/tmp/{i}', 'w').write('a' * 1000000)", "raised OSError"),
    "environment": (
        "import os\nassert set(os.environ) <= {'PATH', 'LANG', 'HOME', 'PWD', 'PYTHONHASHSEED', 'LC_CTYPE'}",
        PASSED,
    ),
    "kills its parents": (
        "import os, signal\nos.kill(os.getppid(), 9)\nos.kill(1, 9)\n"
        "try: os.kill(-1, 9)\nexcept ProcessLookupError: pass\nassert os.getppid() <= 2",
        PASSED,
    ),
    "other processes": (
        "import os\nassert sum(name.isdigit() for name in os.listdir('/proc')) <= 2",
        PASSED,
    ),
    "namespaces": ("import ctypes\nassert ctypes.CDLL(None).unshare(1 << 28) == 0", "raised AssertionError"),
    "nobody": ("import os\nassert os.getuid() == 65534\nos.setuid(0)", "raised OSError"),
}  # fmt: skip


@needs_bubblewrap
def test_programs() -> None:
    """All programs give the expected verdicts when run in parallel."""
    cases = ANYWHERE | SANDBOXED
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda case: run_program(case[0], LIMITS), cases.values()))
    assert dict(zip(cases, found, strict=True)) == {name: wanted for name, (_, wanted) in cases.items()}


def test_programs_without_a_sandbox(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The limits and verdicts are the same."""
    monkeypatch.setenv(UNSAFE_VARIABLE, "1")
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda case: run_program(case[0], LIMITS), ANYWHERE.values()))
    assert dict(zip(ANYWHERE, found, strict=True)) == {name: wanted for name, (_, wanted) in ANYWHERE.items()}
    assert list(tmp_path.iterdir()) == []


@needs_bubblewrap
def test_home_and_user_files_are_hidden(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    for path in (tmp_path / "secret", Path.home(), Path("/root"), Path("/home"), Path("/var"), Path("/etc")):
        program = f"import os\nassert not os.path.exists({str(path)!r})"
        assert run_program(program, LIMITS) == PASSED


@needs_bubblewrap
def test_outside_processes_and_ipc_are_hidden() -> None:
    """Every namespace is new: no signals to outside processes, no IPC objects of theirs."""
    kinds = ("ipc", "mnt", "net", "pid", "user", "uts")
    ours = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in kinds}
    program = f"import os\nfor kind, ns in {ours}.items(): assert os.readlink('/proc/self/ns/' + kind) != ns"
    assert run_program(program, LIMITS) == PASSED
    assert run_program(f"import os\nos.kill({os.getpid()}, 0)", LIMITS) == "raised ProcessLookupError"
    assert run_program(f"open('/proc/{os.getpid()}/cmdline')", LIMITS) == "raised FileNotFoundError"
    memory = SharedMemory(create=True, size=1)
    try:
        program = f"import os\nassert not os.path.exists('/dev/shm/{memory.name}')"
        assert run_program(program, LIMITS) == PASSED
    finally:
        memory.close()
        memory.unlink()


@needs_bubblewrap
def test_out_of_time() -> None:
    """The time limit ends a sleeping program and its descendants."""
    name = f"hero-{os.getpid()}"
    wait = f"import ctypes, time\nctypes.CDLL(None).prctl(15, b'{name}')\ntime.sleep(60)"  # PR_SET_NAME

    def runs() -> bool:
        for path in Path("/proc").glob("[0-9]*/comm"):
            with suppress(OSError):  # the process may have ended
                if path.read_text().strip() == name:
                    return True
        return False

    def comes(wanted: bool) -> bool:
        return any(runs() == wanted or time.sleep(0.02) for _ in range(400))

    with ThreadPoolExecutor() as pool:
        verdict = pool.submit(run_program, wait, Limits(seconds=3))
        assert comes(True)
        assert verdict.result() == "timed out"
    assert comes(False)


def test_no_sandbox(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without bubblewrap programs run only if explicitly allowed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox._probe.cache_clear()
    with pytest.raises(ValueError, match=r"found no sandbox \(no bwrap\), expected .*--unsafe-code"):
        run_program("x = 1")
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho No permissions to create new namespace >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    sandbox._probe.cache_clear()
    with pytest.raises(ValueError, match="No permissions to create new namespace"):
        check_sandbox()
    sandbox._probe.cache_clear()
    monkeypatch.setenv(UNSAFE_VARIABLE, "1")
    assert run_program("x = 1") == PASSED


DOC = {
    "prompt": "def twice(x):\n    '''Doubles.'''\n",
    "entry_point": "twice",
    "test": "def check(candidate):\n    assert candidate(3) == 6\n    assert candidate(-1) == -2\n",
}
COMPLETIONS = {
    "    return 2 * x\n": True,
    "    return x * 2": True,
    "    return 3 * x\n": False,
    "    return 6\n": False,
    "": False,
    "    import sys\n    sys.exit(0)\n": False,
    "    import os\n    os._exit(0)\n": False,
    "    pass\nimport os\nos._exit(0)\n": False,
    "    pass\ndef check(candidate): pass\n": False,
    "    return twice(x)\n": False,
    "return 2 * x\n": False,
}


def test_humaneval(monkeypatch: pytest.MonkeyPatch) -> None:
    """pass@1 of completions with known outcomes."""
    if not WORKS:
        monkeypatch.setenv(UNSAFE_VARIABLE, "1")
    verdicts = humaneval.run([[c] for c in COMPLETIONS], [DOC] * len(COMPLETIONS))
    scores = [humaneval.score(DOC, [verdict])["pass@1"] for verdict in verdicts]
    assert scores == [float(good) for good in COMPLETIONS.values()]
