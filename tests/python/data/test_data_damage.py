"""Parquet and Arrow files with random damage: every row, or one line that names the file, never a crash."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from data_files import write_rows
from hero_moe.data import DataError
from hero_moe.data.readers import arrow_rows, read_batches
from hero_moe.data.records import RecordFormat
from hero_moe.data.sources import find_sources

ROWS = [{"text": f"text {i} é", "n": i} for i in range(60)]


def damaged(content: bytes, rng: random.Random) -> bytes:
    """With a few bytes replaced, removed or inserted, half of them in the metadata at the end."""
    out = bytearray(content)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(out)) if rng.random() < 0.5 else len(out) - 1 - rng.randrange(600)
        out[at : at + rng.randint(0, 8)] = rng.randbytes(rng.randint(0, 8))
    return bytes(out)


def read(path: Path) -> int:
    """The number of rows."""
    batches = read_batches(find_sources([str(path)]), RecordFormat(text_key="text"))
    return sum(len(arrow_rows(batch.payload)) for batch in batches if batch.payload)


@pytest.mark.parametrize(("name", "stream"), [("a.parquet", False), ("a.arrow", False), ("a.arrow", True)])
def test_random_damage(tmp_path: Path, name: str, stream: bool) -> None:
    path = write_rows(tmp_path / name, ROWS, group=20, stream=stream)
    whole = path.read_bytes()
    assert read(path) == len(ROWS)
    rng, rejected = random.Random(1), 0
    for _ in range(200):
        path.write_bytes(damaged(whole, rng))
        try:
            read(path)
        except DataError as error:
            rejected += 1
            assert str(error).startswith(str(path)) and "\n" not in str(error)
    assert rejected > 100


def test_text_outside_the_file(tmp_path: Path) -> None:
    """An offset of Arrow data is followed without a check by pyarrow itself."""
    path = write_rows(tmp_path / "a.arrow", [{"text": "a"}, {"text": "b"}], stream=True)
    offsets, far = struct.pack("<3i", 0, 1, 2), struct.pack("<3i", 0, 1, 1 << 30)
    content = path.read_bytes()
    before, found, after = content.rpartition(offsets)
    assert found and after.strip(b"\0").startswith(b"ab")
    path.write_bytes(before + far + after)
    with pytest.raises(DataError, match="a.arrow: corrupt or unreadable after record 0"):
        read(path)
