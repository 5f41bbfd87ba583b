"""What a benchmark's page says of the machine it ran on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

SETS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")  # from the fastest for bf16 products down
NEITHER = "neither AVX2 nor wider"


def cpuinfo(key: str) -> str:
    """The first value of a key of /proc/cpuinfo; empty: it has none."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.is_file() else []:
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def instruction_set() -> str:
    """The widest of SETS that the processor has."""
    flags = set(cpuinfo("flags").split())
    return next((name for name in SETS if name in flags), NEITHER)


def has_bf16() -> bool:
    """Whether the processor multiplies bf16."""
    return instruction_set().endswith("bf16")


def library_multiplies_bf16() -> bool:
    """Whether the library (oneDNN) has products of bf16 for this processor. Without AVX-512 it has none, and PyTorch
    multiplies number by number: a training step takes minutes."""
    return instruction_set() not in ("avx2", NEITHER)


def gpu() -> str:
    """The name of the first visible NVIDIA GPU; empty: there is none."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""


def machine() -> str:
    """Such as "Intel(R) Xeon(R) Processor, 2 cores (x86_64, avx512f, no bf16 instructions)"."""
    bf16 = "" if has_bf16() else ", no bf16 instructions"
    name = cpuinfo("model name")
    cores = f"{os.cpu_count()} cores ({platform.machine()}, {instruction_set()}{bf16})"
    return f"{name}, {cores}" if name else cores
