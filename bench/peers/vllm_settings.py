"""Settings of vLLM on a CPU."""

from __future__ import annotations

import os

# Its names of our types.
TYPES = {"fp32": "float32", "bf16": "bfloat16"}


def variables() -> dict[str, str]:
    """A thread per core that this process may use; nothing is sent or downloaded."""
    cores = sorted(os.sched_getaffinity(0))
    return {
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
