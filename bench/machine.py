"""What a benchmark's page says of the machine it ran on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

SETS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")  # from the fastest for bf16 products down


def machine() -> str:
    """Such as "2 cores (x86_64, avx512f, no bf16 instructions)"."""
    info = Path("/proc/cpuinfo")
    flags = set()
    for line in info.read_text().splitlines() if info.is_file() else []:
        if line.startswith("flags"):
            flags = set(line.split(":", 1)[1].split())
            break
    widest = next((name for name in SETS if name in flags), "neither AVX2 nor wider")
    bf16 = "" if widest.endswith("bf16") else ", no bf16 instructions"
    return f"{os.cpu_count()} cores ({platform.machine()}, {widest}{bf16})"
