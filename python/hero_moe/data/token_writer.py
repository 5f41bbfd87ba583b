"""Megatron token files written as a stream that can stop and go on: PREFIX-train and PREFIX-valid, .bin and
.idx.

Same bytes as `hero data tokenize` writes. While it goes on there are PREFIX-SPLIT.bin.tmp with the tokens and
PREFIX-SPLIT.len.tmp with an int32 length a document; `commit` brings both to the disk and returns what
`TokenWriter` needs to go on from there, whatever was written after it."""

from __future__ import annotations

import base64
import fcntl
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from hero_moe.data.errors import DataError

MASK = (1 << 64) - 1
TYPE_CODES = {"<u2": 8, "<i4": 4}
SPLITS = ("train", "valid")


def mix64(x: int) -> int:
    """The finaliser of SplitMix64, on 64 bits."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def split_draw(seed: int, number: int) -> float:
    """The number in [0, 1) that decides where document `number` goes (src/data/counter_random.h)."""
    return (mix64(mix64(seed) ^ mix64(~number & MASK)) >> 11) * 2.0**-53


def write_atomically(path: str, data: bytes) -> None:
    """Writes a file and renames it when it is on the disk."""
    with open(path + ".tmp", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)


class _Split:
    """The two growing files of one split."""

    def __init__(self, prefix: str, width: int, tokens: int, documents: int, *, again: bool) -> None:
        self.prefix = prefix
        self.files = []
        for ending, size in ((".bin.tmp", tokens * width), (".len.tmp", documents * 4)):
            path = prefix + ending
            if again and (not os.path.isfile(path) or os.path.getsize(path) < size):
                raise DataError(
                    f"{path}: found less than the {size} bytes that were committed (--restart begins anew)"
                )
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(size)
            file.seek(size)
            self.files.append(file)

    def add(self, tokens: bytes, length: int) -> None:
        self.files[0].write(tokens)
        self.files[1].write(length.to_bytes(4, "little"))

    def sync(self) -> None:
        for file in self.files:
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        for file in self.files:
            file.close()


class TokenWriter:
    """Gives each document to its split, as `hero data tokenize` does.

    A document is for validation when a hash of seed and document number falls below the fraction; the first
    document always trains; while none fell below, the one with the smallest hash is held back, and becomes
    the validation set if it stays that way."""

    def __init__(
        self, out: str, dtype: str, fraction: float, seed: int, state: Mapping[str, Any] | None = None
    ) -> None:
        """Begins anew, or goes on from what `commit` returned. Raises `DataError` when the files do not hold
        what was committed, or when another process writes them."""
        self._out, self._dtype, self._width = out, np.dtype(dtype), np.dtype(dtype).itemsize
        self._fraction, self._seed = fraction, seed
        self.documents = state["documents"] if state else 0
        committed = state["splits"] if state else {}
        self.splits: dict[str, dict[str, int]] = {name: dict(counts) for name, counts in committed.items()}
        self._held: tuple[float, bytes, int] | None = None  # hash, tokens, bytes of text
        if state and state["held"]:
            self._held = (state["held"][0], base64.b64decode(state["held"][1]), state["held"][2])
        self._files: dict[str, _Split] = {}
        try:
            for split in SPLITS:
                self._open(split, again=state is not None and split in state["splits"])
        except BlockingIOError as error:
            self.close()
            raise DataError(f"{out}: another process is writing these token files") from error
        except DataError:
            self.close()
            raise

    def _open(self, split: str, *, again: bool) -> None:
        counts = self.splits.get(split, {"tokens": 0, "documents": 0})
        if split == "valid" and split not in self.splits:
            return
        self._files[split] = _Split(
            f"{self._out}-{split}", self._width, counts["tokens"], counts["documents"], again=again
        )

    def add(self, tokens: bytes, text_bytes: int) -> None:
        """A document: its tokens as they lie on the disk, and how many bytes of text they were."""
        number = self.documents
        self.documents += 1
        if number == 0 or self._fraction == 0:
            return self._to("train", tokens, text_bytes)
        draw = split_draw(self._seed, number)
        if draw < self._fraction:
            self._to("valid", tokens, text_bytes)
            self._release("train")
        elif "valid" in self.splits or (self._held and draw >= self._held[0]):
            self._to("train", tokens, text_bytes)
        else:
            self._release("train")
            self._held = (draw, tokens, text_bytes)

    def _release(self, split: str) -> None:
        if self._held:
            self._to(split, *self._held[1:])
        self._held = None

    def _to(self, split: str, tokens: bytes, text_bytes: int) -> None:
        length = len(tokens) // self._width
        if length >= 1 << 31:
            raise DataError(
                f"{self._out}-{split}.idx: a document has {length} tokens, expected fewer than 2^31: split it"
            )
        counts = self.splits.setdefault(split, {"documents": 0, "tokens": 0, "bytes": 0})
        if split not in self._files:
            self._open(split, again=False)
        self._files[split].add(tokens, length)
        counts["documents"] += 1
        counts["tokens"] += length
        counts["bytes"] += text_bytes

    @property
    def tokens(self) -> int:
        return sum(counts["tokens"] for counts in self.splits.values())

    def commit(self) -> dict[str, Any]:
        """Brings everything to the disk and returns the state to go on from."""
        for files in self._files.values():
            files.sync()
        held = None
        if self._held:
            held = [self._held[0], base64.b64encode(self._held[1]).decode(), self._held[2]]
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
    """Gives the ended files of `splits` their names and writes their indices. May be run again after being
    cut off anywhere."""
    for split in SPLITS:
        prefix = f"{out}-{split}"
        if split not in splits:
            for ending in (".idx", ".bin"):
                _remove(prefix + ending)
            continue
        if os.path.exists(prefix + ".bin.tmp"):
            _remove(prefix + ".idx")  # an older index never stands beside newer tokens
            os.replace(prefix + ".bin.tmp", prefix + ".bin")
        if os.path.exists(prefix + ".len.tmp"):
            lengths = np.fromfile(prefix + ".len.tmp", "<i4")
            write_atomically(prefix + ".idx", index_bytes(lengths, dtype))


def clean(out: str) -> None:
    """Removes what `publish` leaves of a finished set."""
    for split in SPLITS:
        for ending in (".bin.tmp", ".len.tmp"):
            _remove(f"{out}-{split}{ending}")


def index_bytes(lengths: np.ndarray, dtype: str) -> bytes:
    """A Megatron index of documents of one sequence each (src/data/indexed_dataset.h)."""
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
