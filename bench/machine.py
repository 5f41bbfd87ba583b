"""Describes the machine for benchmark pages."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Kernels of `hero bench gemm`, fastest first; folder of the results and name in them. SLOW_BF16: AVX-512, because
# the processor's bf16 instruction is slower.
SLOW_BF16 = "avx512, slow bf16"
FOLDERS = {
    "amx_bf16": "amx",
    "avx512_bf16": "avx512-bf16",
    SLOW_BF16: "avx512-slow-bf16",
    "avx512": "avx512",
    "avx2": "avx2",
    "sse2": "other",
}
NAMES = {
    "amx": "AMX",
    "avx512-bf16": "AVX512-BF16",
    "avx512-slow-bf16": "AVX-512, slow bf16",
    "avx512": "AVX-512",
    "avx2": "AVX2",
    "other": "other",
}
VENDORS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}
# A folder of results: that of an instruction set, or SET-VENDOR-FAMILY-MODEL.
FOLDER = re.compile(rf"({'|'.join(NAMES)})(?:-([a-z]+)-(\d+)-(\d+))?")


def proc_value(file: Path, key: str) -> str:
    """The first value of a key in a file of /proc; empty if there is none."""
    for line in file.read_text().splitlines() if file.is_file() else []:
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def cpuinfo(key: str) -> str:
    """The first value of a key in /proc/cpuinfo; empty if there is none."""
    return proc_value(Path("/proc/cpuinfo"), key)


def kib(file: Path, key: str) -> int:
    """A size in KiB of a file such as /proc/meminfo; 0 if there is none, as in the status of an ended process."""
    return int(proc_value(file, key).removesuffix(" kB") or 0)


def available_kib() -> int:
    """Memory that programs can use without swapping."""
    return kib(Path("/proc/meminfo"), "MemAvailable")


@cache
def instruction_set() -> str:
    """The key of FOLDERS for the instruction set that `hero` uses for bf16 GEMMs."""
    command = [str(ROOT / "build/hero"), "bench", "gemm", "--json"]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    used, kernels = found["used"] or "sse2", list(found["flops_per_second"])
    slower = kernels[kernels.index(used) + 1 :]
    return SLOW_BF16 if used == "avx512" and "avx512_bf16" in slower else used


def has_bf16() -> bool:
    """Whether `hero` uses bf16 instructions."""
    return instruction_set().endswith("_bf16")


def library_multiplies_bf16() -> bool:
    """Whether oneDNN has bf16 GEMM for this CPU. Without AVX-512 it has none, and PyTorch falls back to a
    scalar implementation: a training step takes minutes."""
    return instruction_set() not in ("avx2", "sse2")


def gpu() -> str:
    """The name of the first visible NVIDIA GPU; empty if there is none."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""


def machine() -> str:
    """For example "AMD EPYC, family 26 model 2, 2 cores (x86_64, avx512_bf16)"."""
    bf16 = "" if has_bf16() or instruction_set() == SLOW_BF16 else ", no bf16 instructions"
    family = f"family {cpuinfo('cpu family')} model {cpuinfo('model')}" if cpuinfo("cpu family") else ""
    cores = f"{len(os.sched_getaffinity(0))} cores ({platform.machine()}, {instruction_set()}{bf16})"
    return ", ".join(part for part in (cpuinfo("model name"), family, cores) if part)


def processor_folder(results: Path) -> Path:
    """The folder of this processor: that of its instruction set, or one of its own if that has the results of another
    processor."""
    folder = results / FOLDERS[instruction_set()]
    kept = folder / "cpu.json"
    if not kept.exists() or json.loads(kept.read_text())["machine"] == machine():
        return folder
    vendor = VENDORS.get(cpuinfo("vendor_id"), "other").lower()
    return results / f"{folder.name}-{vendor}-{cpuinfo('cpu family') or 0}-{cpuinfo('model') or 0}"


def folder_name(folder: str) -> str:
    """For example "AVX2" of avx2, "AVX2, AMD family 23 model 1" of avx2-amd-23-1. KeyError for other names."""
    found = FOLDER.fullmatch(folder)
    if not found:
        raise KeyError(folder)
    name, vendor, family, model = found.groups()
    if not vendor:
        return NAMES[name]
    vendors = {value.lower(): value for value in VENDORS.values()}
    return f"{NAMES[name]}, {vendors.get(vendor, vendor)} family {family} model {model}"
