"""Token files of random tokens, as Megatron-LM reads them: speed does not depend on the tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

TYPE_CODES = {"uint8": 1, "uint16": 8}


def write_indexed(prefix: Path | str, values: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> None:
    """PREFIX.bin and .idx of documents with these lengths."""
    values.tofile(f"{prefix}.bin")
    starts = (np.cumsum(lengths, dtype=np.int64) - lengths) * values.itemsize
    with open(f"{prefix}.idx", "wb") as index:
        index.write(b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + bytes([TYPE_CODES[str(values.dtype)]]))
        index.write(np.array([len(lengths), len(lengths) + 1], np.int64).tobytes())
        index.write(lengths.astype(np.int32).tobytes() + starts.tobytes())
        index.write(np.arange(len(lengths) + 1, dtype=np.int64).tobytes())


def write_tokens(folder: Path, vocabulary: int) -> Path:
    """The prefix of one document of 400,000 tokens."""
    tokens = np.random.default_rng(0).integers(0, vocabulary, 400_000, dtype=np.uint16)
    write_indexed(folder / "random", tokens, np.array([len(tokens)]))
    return folder / "random"


def write_documents(folder: Path, vocabulary: int) -> Path:
    """The prefix of 2,000 documents of 32 to 399 tokens, with a loss mask of every second token."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(32, 400, 2_000)
    tokens = rng.integers(1, vocabulary, int(lengths.sum()), dtype=np.uint16)
    write_indexed(folder / "documents", tokens, lengths)
    write_indexed(folder / "documents-mask", (np.arange(len(tokens)) % 2).astype(np.uint8), lengths)
    return folder / "documents"
