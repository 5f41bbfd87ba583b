"""Worker processes that tokenize raw batches of records. Results return in batch order."""

from __future__ import annotations

import io
import json
import math
import os
import re
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import chain
from multiprocessing import connection, get_context, parent_process
from typing import Any, NoReturn

import numpy as np

from hero_moe.data.encoders import make_encoder
from hero_moe.data.errors import DataError
from hero_moe.data.loss_mask import trained_tokens
from hero_moe.data.readers import LONGEST_LINE, RawBatch, arrow_rows
from hero_moe.data.records import RecordFormat, UnusableRecord
from hero_moe.data.tokenizer_file import TokenizerFile
from hero_moe.delayed_interrupt import DelayedInterrupt
from hero_moe.json_text import parse_json

IN_FLIGHT = 4  # batches per worker, finished or not


@dataclass
class Encoded:
    """The documents of a batch: their concatenated tokens in the on-disk type and their loss mask (a byte per
    token; empty without one), the tokens and UTF-8 bytes of each [documents], the number of records, and the
    skipped records by kind."""

    tokens: bytes = b""
    mask: bytes = b""
    lengths: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    text_bytes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    records: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    missing: str = ""  # location and fields of the first record without the field


class Task:
    """Tokenizes batches; one per process."""

    def __init__(
        self, records: dict[str, Any], tokenizer: TokenizerFile, *, strict: bool, skip_invalid: bool
    ) -> None:
        self._records, self._eos = RecordFormat(**records), tokenizer.eos_id
        self._encoder, self._dtype = make_encoder(tokenizer), tokenizer.token_dtype
        self._strict, self._skip_invalid = strict, skip_invalid

    def __call__(self, batch: RawBatch) -> Encoded:
        """Raises `DataError` for invalid lines unless `skip_invalid`, and for records without text if
        `strict`."""
        result, texts, spans = Encoded(), [], []
        for place, record in self._parsed(batch, result):
            result.records += 1
            try:
                if not isinstance(record, dict):
                    raise UnusableRecord("wrong", f"found {type(record).__name__}, expected an object")
                text, assistant = self._records.text_and_spans(record)
                texts.append(text)
                spans.append(assistant)
            except DataError as error:
                raise DataError(f"{batch.path}: {place}: {error}") from error
            except UnusableRecord as problem:
                where = f"{batch.path}: {place}: {problem}"
                if self._strict:
                    raise DataError(where) from problem
                if problem.kind == "missing" and not result.missing:
                    result.missing = where
                result.skipped[problem.kind] = result.skipped.get(problem.kind, 0) + 1
        conversation = self._records.conversation
        masks: list[np.ndarray] = []
        if self._records.loss_mask:
            ids = []
            for text, assistant in zip(texts, spans):
                tokens, offsets = self._encoder.encode_with_offsets(text)
                ids.append(tokens)
                masks.append(trained_tokens(offsets, assistant, len(text)))
        else:
            ids = self._encoder.encode(texts, conversation=conversation) if texts else []
        for number, document in enumerate(ids):
            if conversation and document[-1:] == [self._eos]:  # some chat templates end with it
                continue
            document.append(self._eos)
            if masks:
                end = len(texts[number])
                trained = any(begin <= end < stop for begin, stop in spans[number])
                masks[number] = np.append(masks[number], np.uint8(trained))
        result.mask = b"".join(mask.tobytes() for mask in masks)
        result.lengths = np.array([len(document) for document in ids], np.int64)
        result.text_bytes = np.array([len(text.encode()) for text in texts], np.int64)
        result.tokens = np.fromiter(
            chain.from_iterable(ids), self._dtype, int(result.lengths.sum())
        ).tobytes()
        return result

    def _parsed(self, batch: RawBatch, result: Encoded) -> Iterator[tuple[str, Any]]:
        if batch.format == "arrow":
            for number, row in enumerate(arrow_rows(batch.payload), batch.begin.record + 1):
                yield f"row {number}", row
            return
        offset = batch.begin.offset
        for number, line in enumerate(io.BytesIO(batch.payload), batch.begin.record + 1):
            at, offset = offset, offset + len(line)
            if not batch.too_long and not line.strip(b" \t\r\n"):
                continue
            try:
                if batch.too_long or len(line) > LONGEST_LINE:
                    raise _InvalidLine(
                        0, f"found a line of more than {LONGEST_LINE} bytes, expected at most that"
                    )
                record = _parse(line.removesuffix(b"\n"))
            except _InvalidLine as error:
                if not self._skip_invalid:
                    raise DataError(
                        f"{batch.path}: line {number}, byte {at + error.at}: {error} "
                        "(--skip-invalid skips such lines)"
                    ) from error
                result.records += 1
                result.skipped["invalid"] = result.skipped.get("invalid", 0) + 1
                continue
            yield f"line {number}, byte {at}", record


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# JSON whose escapes are characters and pairs of surrogates, up to the first unpaired surrogate.
_PAIRED = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F])*+"
)


# Only such numbers can exceed a double.
_LONG_NUMBER = re.compile(rb"[0-9]{200}|[eE]\+?[0-9]{3}")
_MOST_LEVELS = 100  # as in src/io/json.cpp


class _InvalidLine(Exception):
    def __init__(self, at: int, what: str) -> None:
        super().__init__(what)
        self.at = at


def _parse(line: bytes) -> Any:
    """The JSON value of a line. Raises `_InvalidLine` with the byte offset in the line."""
    if (nul := line.find(b"\0")) >= 0:
        raise _InvalidLine(nul, "NUL byte, expected UTF-8 text")
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise _InvalidLine(
            error.start, f"invalid UTF-8 (0x{line[error.start]:02X}), expected UTF-8 text"
        ) from error
    finite = {"parse_float": _finite_float, "parse_int": _finite_int} if _LONG_NUMBER.search(line) else {}
    try:
        value = parse_json(
            text.removeprefix("\ufeff"),
            parse_constant=_no_constant,
            object_pairs_hook=_with_unique_keys,
            **finite,
        )
    except json.JSONDecodeError as error:
        raise _InvalidLine(
            len(text[: error.pos].encode()), "invalid JSON, expected one object per line"
        ) from error
    except ValueError as error:
        raise _InvalidLine(0, f"invalid JSON ({error}), expected one object per line") from error
    if _SURROGATE.search(line) and (paired := _PAIRED.match(line)) and paired.end() < len(line):
        raise _InvalidLine(paired.end(), "unpaired surrogate, expected Unicode text")
    if line.count(b"{") + line.count(b"[") > _MOST_LEVELS and _levels(value) > _MOST_LEVELS:
        raise _InvalidLine(0, f"found values nested deeper than {_MOST_LEVELS} levels, expected at most that")
    return value


def _finite_float(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"found {text:.20}, expected a number within the doubles")
    return value


def _finite_int(text: str) -> int:
    _finite_float(text)
    return int(text)


def _levels(value: Any) -> int:
    """How deeply objects and arrays are nested."""
    levels, inside = 0, [value]
    while inside := [one for one in inside if isinstance(one, (dict, list))]:
        levels += 1
        inside = [item for one in inside for item in (one.values() if isinstance(one, dict) else one)]
    return levels


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"found {name}")


def _with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'entry "{repeated}" is a duplicate key, expected unique keys')
    return value


_task: Task | None = None


def _start(make: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Initializes a worker: only the parent handles Ctrl-C, and the worker exits with the parent."""
    global _task
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        threading.Thread(
            target=lambda: (connection.wait([parent.sentinel]), os._exit(1)), daemon=True
        ).start()
    _task = Task(*make, **options)


def _work(batch: RawBatch) -> Encoded:
    assert _task is not None
    return _task(batch)


def encoded_batches(
    batches: Iterator[RawBatch],
    workers: int,
    records: dict[str, Any],
    tokenizer: TokenizerFile,
    *,
    strict: bool,
    skip_invalid: bool,
) -> Generator[tuple[RawBatch, Encoded], None, None]:
    """Each batch with its documents, in order. A single worker runs in this process; more run in processes of
    their own, with a bounded number of in-flight batches. Raises the first error in batch order, after all
    batches before it."""
    options = {"strict": strict, "skip_invalid": skip_invalid}
    if workers <= 1:
        task = Task(records, tokenizer, **options)
        for batch in batches:
            yield batch, task(batch) if batch.payload else Encoded()
        return
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _start, ((records, tokenizer), options))
    try:
        with DelayedInterrupt() as interrupt:
            for result in _in_order(batches, lambda batch: pool.submit(_work, batch), IN_FLIGHT * workers):
                interrupt.check()
                yield result
            interrupt.check()
    except BrokenProcessPool as error:
        raise RuntimeError("a worker process died (out of memory?); the same command resumes") from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _in_order(
    batches: Iterator[RawBatch], submit: Callable[[RawBatch], Future[Encoded]], limit: int
) -> Iterator[tuple[RawBatch, Encoded]]:
    in_flight: deque[tuple[RawBatch, Future[Encoded] | None]] = deque()
    failure: Exception | None = None
    more = True
    while more or in_flight:
        while more and len(in_flight) < limit:
            try:
                batch = next(batches, None)
            except Exception as error:  # raised after the batches before it
                failure, batch = error, None
            if batch is None:
                more = False
                break
            in_flight.append((batch, submit(batch) if batch.payload else None))
        if in_flight:
            batch, future = in_flight.popleft()
            yield batch, future.result() if future else Encoded()
    if failure:
        raise failure
