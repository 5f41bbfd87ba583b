"""Reads sources as a stream of raw batches, resumable after any batch.

Memory is bounded by a batch: rows of the selected columns of one row group (Parquet) or record batch (Arrow),
or about a megabyte of lines (JSON). A batch is sent to its worker as bytes: an Arrow IPC stream, or the raw
lines."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from hero_moe.data.errors import DataError
from hero_moe.data.records import RecordFormat
from hero_moe.data.sources import Source


class Place(NamedTuple):
    """Where to resume inside a source.

    `unit` is the row group or record batch (0 for JSON), `offset` the rows read of it (JSON: bytes of
    uncompressed text), `record` the rows or lines read since the start of the source."""

    unit: int = 0
    offset: int = 0
    record: int = 0


LONGEST_LINE = 256 << 20  # bytes; a longer line is no document but damage or a decompression bomb


@dataclass(frozen=True)
class RawBatch:
    """Records of one source. An empty payload marks the end of the source. A line that is too long is a batch
    of its own, without its text."""

    source: int  # index
    path: str
    format: str  # of the payload: "arrow" or "json"
    payload: bytes
    begin: Place
    end: Place
    consumed: int  # bytes of the source on disk read up to the end of this batch
    too_long: bool = False


def read_batches(
    sources: Sequence[Source],
    records: RecordFormat,
    *,
    source: int = 0,
    place: Place = Place(),
    rows: int = 256,
    size: int = 1 << 20,
) -> Iterator[RawBatch]:
    """The batches of `sources`, starting at `place` in source `source`; each source ends with an empty batch.

    `rows` is the maximum rows of a batch, `size` the approximate bytes of a batch of lines. Raises
    `DataError` for corrupt files and for columns that are missing or have the wrong type."""
    readers = {"parquet": _parquet, "arrow": _arrow, "json": _json}
    for number in range(source, len(sources)):
        this = sources[number]
        end = place
        try:
            for batch in readers[this.format](
                number, this, records, place, size if this.format == "json" else rows
            ):
                end = batch.end
                yield batch
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            what = " ".join(str(error).split())
            raise DataError(
                f"{this.path}: corrupt or unreadable after record {end.record}: {what}"
            ) from error
        kind = "json" if this.format == "json" else "arrow"
        yield RawBatch(number, this.path, kind, b"", end, end, this.size)
        place = Place()


def _parquet(
    number: int, source: Source, records: RecordFormat, place: Place, rows: int
) -> Iterator[RawBatch]:
    with pq.ParquetFile(source.path, buffer_size=1 << 20) as file:
        columns = records.columns(file.schema_arrow, source.path)
        total = max(1, file.metadata.num_rows)
        done = place.record - place.offset
        for group in range(place.unit, file.num_row_groups):
            skip = place.offset if group == place.unit else 0
            at = 0
            for batch in file.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False):
                batch.validate(full=True)  # text that is not UTF-8
                begin, at = at, at + batch.num_rows
                if at <= skip:
                    continue
                cut = max(0, skip - begin)
                span = Place(group, begin + cut, done + begin + cut), Place(group, at, done + at)
                consumed = source.size * span[1].record // total
                yield RawBatch(number, source.path, "arrow", _ipc(batch.slice(cut)), *span, consumed)
            done += at


def _arrow(number: int, source: Source, records: RecordFormat, place: Place, rows: int) -> Iterator[RawBatch]:
    done = place.record - place.offset
    with pa.memory_map(source.path) as file:
        for unit, (batch, consumed) in enumerate(_record_batches(file, source, place.unit), place.unit):
            columns = {column.split(".")[0] for column in records.columns(batch.schema, source.path)}
            batch = batch.select([name for name in batch.schema.names if name in columns])
            batch.validate(full=True)  # pyarrow reads outside the file where its offsets say so
            at = place.offset if unit == place.unit else 0
            while at < batch.num_rows:
                piece = batch.slice(at, rows)
                begin, at = at, at + piece.num_rows
                span = Place(unit, begin, done + begin), Place(unit, at, done + at)
                yield RawBatch(number, source.path, "arrow", _ipc(piece), *span, consumed)
            done += batch.num_rows


def _record_batches(
    file: pa.MemoryMappedFile, source: Source, first: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The record batches from index `first`, of either IPC format, and the file bytes read after each."""
    if bytes(file.read(6)) == b"ARROW1":
        reader = pa.ipc.open_file(file)
        for unit in range(first, reader.num_record_batches):
            yield reader.get_batch(unit), source.size * (unit + 1) // reader.num_record_batches
        return
    file.seek(0)
    for unit, batch in enumerate(pa.ipc.open_stream(file)):
        if unit >= first:
            yield batch, file.tell()


def _ipc(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def arrow_rows(payload: bytes) -> list[dict[str, Any]]:
    """The rows of an Arrow payload."""
    return [row for batch in pa.ipc.open_stream(payload) for row in batch.to_pylist()]


class _Parts(io.RawIOBase):
    """Concatenated files as one stream; `consumed` counts the bytes read."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = list(reversed(paths))
        self._file = open(self._paths.pop(), "rb", buffering=0)
        self.consumed = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while (count := self._file.readinto(buffer)) == 0 and self._paths:
            self._file.close()
            self._file = open(self._paths.pop(), "rb", buffering=0)
        self.consumed += count or 0
        return count or 0

    def close(self) -> None:
        self._file.close()
        super().close()


def _json(number: int, source: Source, records: RecordFormat, place: Place, size: int) -> Iterator[RawBatch]:
    with _Parts(source.parts) as raw:
        if source.compression:
            stream: Any = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), source.compression)
            left = place.offset
            while left > 0 and (skipped := len(stream.read(min(left, 1 << 20)))):
                left -= skipped
        else:
            stream = open(source.path, "rb")
            stream.seek(place.offset)
        with stream:
            for payload, end in _line_blocks(stream, source, place, size):
                consumed = raw.consumed if source.compression else end.offset
                too_long = end.offset - place.offset > len(payload)
                yield RawBatch(number, source.path, "json", payload, place, end, consumed, too_long)
                place = end


def _line_blocks(stream: Any, source: Source, place: Place, size: int) -> Iterator[tuple[bytes, Place]]:
    """Complete lines of about `size` bytes, and the place after them. A line that is too long is b"\\n"."""
    pending: list[bytes] = []
    skipped = 0  # bytes of a line that is too long
    offset, lines = place.offset, place.record
    while True:
        block = stream.read(size)
        if (
            offset == 0
            and not pending
            and not skipped
            and block.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["
        ):
            raise DataError(
                f"{source.path}: line 1, byte 0: found a JSON array, expected one object per line"
            )
        cut = block.rfind(b"\n") + 1 if block else 0
        if block and not cut:
            pending.append(block)
            if skipped or sum(map(len, pending)) > LONGEST_LINE:
                skipped += sum(map(len, pending))
                pending = []
            continue
        if skipped:
            end = block.find(b"\n") + 1  # 0 at the end of the file
            offset, lines, skipped = offset + skipped + end, lines + 1, 0
            yield b"\n", Place(0, offset, lines)
            if not block:
                return
            block, cut = block[end:], cut - end
            if not cut:
                pending = [block] if block else []
                continue
        payload = b"".join((*pending, block[:cut]))
        pending = [block[cut:]] if block[cut:] else []
        if payload:
            offset += len(payload)
            lines += payload.count(b"\n") + (not payload.endswith(b"\n"))
            yield payload, Place(0, offset, lines)
        if not block:
            return
