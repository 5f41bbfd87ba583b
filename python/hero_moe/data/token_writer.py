"""Resumable streaming writer of Megatron token files: PREFIX-train and PREFIX-valid, .bin and .idx, and of their
loss masks PREFIX-train-mask and PREFIX-valid-mask (src/data/loss_mask.h).

Same bytes as `hero data tokenize` writes. During writing, PREFIX-SPLIT.bin.tmp holds the tokens,
PREFIX-SPLIT.len.tmp an int32 length per document and PREFIX-SPLIT-mask.bin.tmp the mask; `commit` syncs both to disk and returns the state from
which `TokenWriter` resumes. Later writes are discarded."""

from __future__ import annotations

import base64
import fcntl
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from hero_moe.data.errors import DataError

MASK = (1 << 64) - 1
TYPE_CODES = {"|u1": 1, "<u2": 8, "<i4": 4}
MASK_NAME = "-mask"  # after the name of a split
SPLITS = ("train", "valid")


def mix64(x: int) -> int:
    """The finalizer of SplitMix64, on 64 bits."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def split_hash(seed: int, number: int) -> float:
    """Hash in [0, 1) that assigns document `number` to a split (src/data/counter_random.h)."""
    return (mix64(mix64(seed) ^ mix64(~number & MASK)) >> 11) * 2.0**-53


def write_atomically(path: str, data: bytes) -> None:
    """Writes a temporary file, syncs it to disk and renames it."""
    with open(path + ".tmp", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)


class _Split:
    """The open files of one split."""

    def __init__(
        self, prefix: str, width: int, tokens: int, documents: int, *, resume: bool, loss_mask: bool
    ) -> None:
        self.prefix = prefix
        self.files = []
        sizes = [(".bin.tmp", tokens * width), (".len.tmp", documents * 4)]
        if loss_mask:
            sizes.append((MASK_NAME + ".bin.tmp", tokens))
        for extension, size in sizes:
            path = prefix + extension
            if resume and (not os.path.isfile(path) or os.path.getsize(path) < size):
                raise DataError(f"{path}: found less than the {size} committed bytes (--restart starts over)")
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(size)
            file.seek(size)
            self.files.append(file)

    def add(self, tokens: bytes, length: int, mask: bytes) -> None:
        for file, data in zip(self.files, (tokens, length.to_bytes(4, "little"), mask)):
            file.write(data)

    def sync(self) -> None:
        for file in self.files:
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        for file in self.files:
            file.close()


class TokenWriter:
    """Assigns each document to a split, as `hero data tokenize` does.

    A document is for validation if a hash of seed and document number is below the fraction; the first
    document is always for training. Until a hash is below the fraction, the document with the smallest hash
    is held back; if none ever is, that document becomes the validation set."""

    def __init__(
        self,
        out: str,
        dtype: str,
        fraction: float,
        seed: int,
        state: Mapping[str, Any] | None = None,
        *,
        loss_mask: bool = False,
    ) -> None:
        """Starts new files, or resumes from the state that `commit` returned; `loss_mask`: documents have one.
        Raises `DataError` if the files are shorter than committed, or if another process writes them."""
        self._out, self._dtype, self._width = out, np.dtype(dtype), np.dtype(dtype).itemsize
        self._fraction, self._seed, self._loss_mask = fraction, seed, loss_mask
        self.documents = state["documents"] if state else 0
        committed = state["splits"] if state else {}
        self.splits: dict[str, dict[str, int]] = {name: dict(counts) for name, counts in committed.items()}
        self._held: tuple[float, bytes, int, bytes] | None = None  # hash, tokens, bytes of text, mask
        if state and state["held"]:
            hash_value, held_tokens, text_bytes, *mask = state["held"]
            held_mask = base64.b64decode(mask[0]) if mask else b""
            self._held = (hash_value, base64.b64decode(held_tokens), text_bytes, held_mask)
        self._files: dict[str, _Split] = {}
        try:
            for split in SPLITS:
                self._open(split, resume=state is not None and split in state["splits"])
        except BlockingIOError as error:
            self.close()
            raise DataError(f"{out}: another process is writing these token files") from error
        except DataError:
            self.close()
            raise

    def _open(self, split: str, *, resume: bool) -> None:
        counts = self.splits.get(split, {"tokens": 0, "documents": 0})
        if split == "valid" and split not in self.splits:
            return
        self._files[split] = _Split(
            f"{self._out}-{split}",
            self._width,
            counts["tokens"],
            counts["documents"],
            resume=resume,
            loss_mask=self._loss_mask,
        )

    def add(self, tokens: bytes, text_bytes: int, mask: bytes = b"") -> None:
        """Adds a document: its tokens in the on-disk type, the size of its text in bytes, and its loss mask."""
        number = self.documents
        self.documents += 1
        if number == 0 or self._fraction == 0:
            return self._to("train", tokens, text_bytes, mask)
        hash_value = split_hash(self._seed, number)
        if hash_value < self._fraction:
            self._to("valid", tokens, text_bytes, mask)
            self._release("train")
        elif "valid" in self.splits or (self._held and hash_value >= self._held[0]):
            self._to("train", tokens, text_bytes, mask)
        else:
            self._release("train")
            self._held = (hash_value, tokens, text_bytes, mask)

    def _release(self, split: str) -> None:
        if self._held:
            self._to(split, *self._held[1:])
        self._held = None

    def _to(self, split: str, tokens: bytes, text_bytes: int, mask: bytes) -> None:
        length = len(tokens) // self._width
        if length >= 1 << 31:
            raise DataError(
                f"{self._out}-{split}.idx: a document has {length} tokens, expected fewer than 2^31: split it"
            )
        counts = self.splits.setdefault(split, {"documents": 0, "tokens": 0, "bytes": 0})
        if split not in self._files:
            self._open(split, resume=False)
        self._files[split].add(tokens, length, mask)
        counts["documents"] += 1
        counts["tokens"] += length
        counts["bytes"] += text_bytes
        if self._loss_mask:
            counts["trained_tokens"] = counts.get("trained_tokens", 0) + sum(mask)

    @property
    def tokens(self) -> int:
        return sum(counts["tokens"] for counts in self.splits.values())

    def commit(self) -> dict[str, Any]:
        """Syncs everything to disk and returns the state to resume from."""
        for files in self._files.values():
            files.sync()
        held = None
        if self._held:
            hash_value, tokens, text_bytes, mask = self._held
            held = [hash_value, base64.b64encode(tokens).decode(), text_bytes]
            held += [base64.b64encode(mask).decode()] if self._loss_mask else []
        splits = {name: dict(counts) for name, counts in self.splits.items()}
        return {"documents": self.documents, "splits": splits, "held": held}

    def end(self) -> dict[str, Any]:
        """The last commit: the document held back becomes the validation set."""
        self._release("valid")
        return self.commit()

    def close(self) -> None:
        for files in self._files.values():
            files.close()


def publish(out: str, dtype: str, splits: Mapping[str, Mapping[str, int]]) -> None:
    """Renames the finished files of `splits` and writes their indices. Can be repeated after an interruption
    at any point."""
    for split in SPLITS:
        prefix = f"{out}-{split}"
        masked = "trained_tokens" in splits.get(split, {})
        for name, kept, kind in ((prefix, split in splits, dtype), (prefix + MASK_NAME, masked, "|u1")):
            if not kept:
                for extension in (".idx", ".bin"):
                    _remove(name + extension)
                continue
            if os.path.exists(name + ".bin.tmp"):
                _remove(name + ".idx")  # never leave an older index next to newer tokens
                os.replace(name + ".bin.tmp", name + ".bin")
            if os.path.exists(prefix + ".len.tmp"):
                lengths = np.fromfile(prefix + ".len.tmp", "<i4")
                write_atomically(name + ".idx", index_bytes(lengths, kind))


def clean(out: str) -> None:
    """Removes the temporary files that `publish` leaves."""
    for split in SPLITS:
        for extension in (".bin.tmp", ".len.tmp", MASK_NAME + ".bin.tmp"):
            _remove(f"{out}-{split}{extension}")


def index_bytes(lengths: np.ndarray, dtype: str) -> bytes:
    """A Megatron index with one sequence per document (src/data/indexed_dataset.h)."""
    count = len(lengths)
    pointers = np.zeros(count, "<i8")
    np.cumsum(lengths[:-1], out=pointers[1:], dtype="<i8")
    pointers *= np.dtype(dtype).itemsize
    return b"".join(
        (
            b"MMIDIDX\0\0",
            np.array([1], "<u8").tobytes(),
            bytes([TYPE_CODES[dtype]]),
            np.array([count, count + 1], "<u8").tobytes(),
            lengths.tobytes(),
            pointers.tobytes(),
            np.arange(count + 1, dtype="<i8").tobytes(),
        )
    )


def _remove(path: str) -> None:
    if os.path.lexists(path):
        os.remove(path)
