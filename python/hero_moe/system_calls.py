"""Restricts this process to computing, and to reading and writing its open files: for code from others.

A seccomp filter of the kernel allows the system calls for that; all others fail with EPERM, so that nothing can
open a file, connect, or start a process or thread. No privileges are needed, and nothing is lost by calls that
are not made: unlike a sandbox of namespaces it also works inside containers.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

# read, write, mmap, mprotect, munmap, mremap, brk, madvise, futex, rt_sigaction, rt_sigprocmask, rt_sigreturn,
# sigaltstack, restart_syscall, setitimer, gettimeofday, clock_gettime, getpid, gettid, getrandom, exit, exit_group.
_ALLOWED = {
    "x86_64": (0xC000003E, (
        0, 1, 9, 10, 11, 25, 12, 28, 202, 13, 14, 15, 131, 219, 38, 96, 228, 39, 186, 318, 60, 231)),
    "aarch64": (0xC00000B7, (
        63, 64, 222, 226, 215, 216, 214, 233, 98, 134, 135, 139, 132, 128, 103, 169, 113, 172, 178, 278, 93, 94)),
}  # fmt: skip
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2


def restrict_system_calls() -> None:
    """Installs the filter, for good. Raises `OSError` where the kernel or the architecture has none."""
    machine = platform.machine()
    if machine not in _ALLOWED:
        raise OSError(f"no system call filter for the architecture {machine}")
    code = _filter(*_ALLOWED[machine])
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    for name, arguments in (
        (_PR_SET_NO_NEW_PRIVS, (1, 0, 0, 0)),
        (_PR_SET_SECCOMP, (_MODE_FILTER, ctypes.create_string_buffer(program, len(program)), 0, 0)),
    ):
        if libc.prctl(name, *arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"prctl: {os.strerror(number)}")


def _filter(architecture: int, allowed: tuple[int, ...]) -> bytes:
    """A seccomp program: kills other architectures, allows the calls, denies the rest."""
    load, equal, give = 0x20, 0x15, 0x06
    allow, deny, kill = 0x7FFF0000, 0x00050001, 0x80000000
    code = [
        (load, 0, 0, 4),  # the architecture
        (equal, 1, 0, architecture),
        (give, 0, 0, kill),
        (load, 0, 0, 0),  # the system call
        *((equal, len(allowed) - number, 0, call) for number, call in enumerate(allowed)),
        (give, 0, 0, deny),
        (give, 0, 0, allow),
    ]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)
