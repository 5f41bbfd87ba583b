"""Raw data to token files: the complete, resumable pipeline."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hero_moe.data.errors import DataError
from hero_moe.data.position import SKIP_REASONS, Position, load_position, source_list
from hero_moe.data.progress import Progress
from hero_moe.data.readers import Place, RawBatch, read_batches
from hero_moe.data.records import RecordFormat
from hero_moe.data.sources import Source, find_sources
from hero_moe.data.token_writer import MASK_NAME, SPLITS, TokenWriter, clean, publish, write_atomically
from hero_moe.data.tokenizer_file import TokenizerFile
from hero_moe.data.workers import Encoded, encoded_batches

RECORDS_BEFORE_MISSING_FIELD_ERROR = 10_000


@dataclass(frozen=True)
class TokenizeOptions:
    """Inputs, output and settings of `tokenize`.

    `out` is the output prefix, `valid_fraction` the fraction of the documents held out for validation, in
    [0, 1), chosen by `seed`; `workers` the number of processes (0: one per core). `strict` fails on records
    without text, `skip_invalid` skips invalid lines. A commit follows every `commit_bytes` of text; a batch
    has `batch_rows` rows or about `batch_bytes` of lines. The output does not depend on workers, batches or
    commits."""

    inputs: Sequence[str]
    out: str
    tokenizer: TokenizerFile
    records: RecordFormat = field(default_factory=lambda: RecordFormat(text_key="text"))
    config: str | None = None
    split: str = "train"
    valid_fraction: float = 0.01
    seed: int = 1234
    workers: int = 0
    strict: bool = False
    skip_invalid: bool = False
    batch_rows: int = 256
    batch_bytes: int = 1 << 20
    commit_bytes: int = 64 << 20


@dataclass(frozen=True)
class TokenizeResult:
    """Counts of documents, tokens and bytes by split; the number of `records` read and, by kind, skipped;
    whether the output was already complete."""

    splits: dict[str, dict[str, int]]
    records: int
    skipped: dict[str, int]
    was_complete: bool = False


# Beside the tokenizer, as src/tokenizer/companions.h.
COMPANIONS = (".chat_template.jinja", ".tokenizer_config.json")
# Besides the tokenizer.
OUTPUTS = (
    *(f"-{split}{mask}.{file}" for split in SPLITS for mask in ("", MASK_NAME) for file in ("bin", "idx")),
    ".json",
    *COMPANIONS,
)


def position_path(out: str) -> str:
    """The position file of token files."""
    return out + ".position.json"


def tokenize(
    options: TokenizeOptions, *, restart: bool = False, resume: bool = False, overwrite: bool = False
) -> TokenizeResult:
    """Writes OUT-train.bin/.idx, OUT-valid.bin/.idx, OUT.json and a copy of the tokenizer, as `hero data
    tokenize` does, bit for bit for the same text; with `records.loss_mask` also OUT-train-mask.bin/.idx and
    OUT-valid-mask.bin/.idx; beside a tokenizer.json also OUT.tokenizer_config.json, and for conversations
    OUT.chat_template.jinja, which a run on the data copies.

    Resumes from OUT.position.json if there is one (`resume`: it must exist; `restart`: starts over). Memory
    is a few batches per worker. Raises `DataError` for invalid input, and unless `overwrite` if a new start
    would replace finished files."""
    if not 0 <= options.valid_fraction < 1:
        raise DataError(f"--valid-fraction {options.valid_fraction}: expected 0 or more and less than 1")
    if not 0 <= options.seed < 1 << 64:
        raise DataError(f"--seed {options.seed}: expected 0 to 2^64 - 1")
    sources = find_sources(options.inputs, config=options.config, split=options.split)
    path = position_path(options.out)
    written = {os.path.realpath(name) for name in (options.out + ".json", path)}
    for source in sources:
        if mine := [part for part in source.parts if os.path.realpath(part) in written]:
            raise DataError(
                f"--out {options.out}: would replace the input {mine[0]}, expected another prefix"
            )
    os.makedirs(os.path.dirname(os.path.abspath(options.out)), exist_ok=True)
    recorded = _recorded_options(options)
    position = None if restart else load_position(path, recorded, sources)
    if position is None and resume:
        raise DataError(f"{path}: no such file, expected one to resume from")
    if position and position.stage == "complete" and _output_is_complete(options, position):
        clean(options.out)
        return _result(position, was_complete=True)
    if position is None and not overwrite:
        _check_absent(options)
    if position is None or position.stage == "complete":
        position = Position(recorded, source_list(sources))
    if position.stage == "reading":
        _read(options, sources, position)
    _finish(options, position)
    return _result(position)


def _check_absent(options: TokenizeOptions) -> None:
    """A run that reads the files would continue on other text."""
    copy = options.out + options.tokenizer.extension
    paths = [options.out + ending for ending in OUTPUTS if os.path.exists(options.out + ending)]
    if os.path.exists(copy):
        with open(copy, "rb") as file:
            paths += [] if file.read() == options.tokenizer.data else [copy]
    if paths:
        raise DataError(
            f"{paths[0]}: exists, expected a new --out, or --overwrite to replace the files of this one"
        )


def _recorded_options(options: TokenizeOptions) -> dict[str, Any]:
    """Everything that determines the output, for the position file."""
    records = {name: value for name, value in asdict(options.records).items() if value}
    if "chat_template" in records:
        records["chat_template"] = hashlib.sha256(records["chat_template"].encode()).hexdigest()
    return {
        **records,
        "tokenizer": options.tokenizer.sha256,
        "eos_id": options.tokenizer.eos_id,
        "valid_fraction": options.valid_fraction,
        "seed": options.seed,
        "strict": options.strict,
        "skip_invalid": options.skip_invalid,
    }


def _read(options: TokenizeOptions, sources: list[Source], position: Position) -> None:
    """Tokenizes from the position to the end of the sources; sets the stage to "ended"."""
    path = position_path(options.out)
    writer = TokenWriter(
        options.out,
        options.tokenizer.token_dtype,
        options.valid_fraction,
        options.seed,
        position.writer,
        loss_mask=options.records.loss_mask,
    )
    before = [sum(source.size for source in sources[:number]) for number in range(len(sources) + 1)]
    first_bytes = sum(counts["bytes"] for counts in writer.splits.values())
    progress = Progress(f"tokenizing {os.path.basename(options.out)}", before[-1], before[position.source])
    text_bytes = committed = first_bytes
    batches = read_batches(
        sources,
        options.records,
        source=position.source,
        place=position.place,
        rows=options.batch_rows,
        size=options.batch_bytes,
    )
    workers = options.workers or len(os.sched_getaffinity(0))
    encoded = encoded_batches(
        batches,
        workers,
        asdict(options.records),
        options.tokenizer,
        strict=options.strict,
        skip_invalid=options.skip_invalid,
    )
    try:
        position.writer = writer.commit()
        position.save(path)
        for batch, documents in encoded:
            _write(writer, documents)
            _advance(position, batch, documents)
            text_bytes += int(documents.text_bytes.sum())
            if text_bytes - committed >= options.commit_bytes:
                committed = text_bytes
                position.writer = writer.commit()
                position.save(path)
            progress.update(
                before[batch.source] + batch.consumed,
                writer.documents,
                text_bytes,
                writer.tokens,
                text_bytes - first_bytes,
            )
        if writer.documents == 0:
            raise DataError(f"{_described(options.inputs)}: no text found, expected text to tokenize")
        position.writer = writer.end()
        position.stage = "ended"
        position.save(path)
    finally:
        encoded.close()
        progress.close()
        writer.close()


def _write(writer: TokenWriter, documents: Encoded) -> None:
    if not len(documents.lengths):
        return
    width = len(documents.tokens) // int(documents.lengths.sum())
    at = 0
    for length, size in zip(documents.lengths.tolist(), documents.text_bytes.tolist()):
        mask = documents.mask[at : at + length]
        writer.add(documents.tokens[at * width : (at + length) * width], size, mask)
        at += length


def _advance(position: Position, batch: RawBatch, documents: Encoded) -> None:
    """Counts a batch. Raises `DataError` if no record of a file has the field."""
    missing = documents.skipped.get("missing", 0)
    position.records += documents.records
    for kind, count in documents.skipped.items():
        position.left_out[kind] += count
    records, lacking, example = position.in_source
    records, lacking, example = records + documents.records, lacking + missing, example or documents.missing
    ended = not batch.payload
    if records and records == lacking and (ended or records >= RECORDS_BEFORE_MISSING_FIELD_ERROR):
        raise DataError(f"{example} (in none of {'its' if ended else 'the first'} {records} records)")
    position.in_source = [records, lacking, example]
    position.source, position.place = batch.source, batch.end
    if ended:
        position.source, position.place, position.in_source = batch.source + 1, Place(), [0, 0, ""]


def _finish(options: TokenizeOptions, position: Position) -> None:
    """Writes final names, indices, tokenizer and counts; can be repeated after an interruption."""
    assert position.writer is not None
    out, tokenizer, splits = options.out, options.tokenizer, position.writer["splits"]
    if os.path.exists(out + ".json"):  # never leave an older one next to newer tokens
        os.remove(out + ".json")
    publish(out, tokenizer.token_dtype, splits)
    write_atomically(out + tokenizer.extension, tokenizer.data)
    companions = _companions(options)
    for name in COMPANIONS:
        if name in companions:
            write_atomically(out + name, companions[name].encode())
        elif os.path.exists(out + name):
            os.remove(out + name)
    write_atomically(out + ".json", _token_files(options, splits).encode())
    position.stage = "complete"
    position.save(position_path(out))
    clean(out)


def _companions(options: TokenizeOptions) -> dict[str, str]:
    """What the tokenizer file lacks: the template of conversations, and beside a tokenizer.json the special
    tokens, of which eos_token ends documents."""
    template = options.records.chat_template
    files = {} if template is None else {".chat_template.jinja": template}
    if options.tokenizer.kind == "tokenizers":
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **options.tokenizer.special_tokens}
        config["eos_token"] = options.tokenizer.eos_token
        files[".tokenizer_config.json"] = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    return files


def _token_files(options: TokenizeOptions, splits: dict[str, dict[str, int]]) -> str:
    """OUT.json, in the format of src/data/token_files.cpp."""
    tokenizer = options.tokenizer
    value = {
        "format": "hero token files 1",
        "tokenizer": os.path.basename(options.out) + tokenizer.extension,
        "tokenizer_sha256": tokenizer.sha256,
        "vocab_size": tokenizer.vocab_size,
        "eos_id": tokenizer.eos_id,
        "splits": {split: splits[split] for split in sorted(splits)},
    }
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _output_is_complete(options: TokenizeOptions, position: Position) -> bool:
    """Whether all files of a complete position exist with their sizes."""
    assert position.writer is not None
    width = int(options.tokenizer.token_dtype[-1])
    sizes = {f"{options.out}-{k}.bin": v["tokens"] * width for k, v in position.writer["splits"].items()}
    others = [f"{options.out}-{k}.idx" for k in position.writer["splits"]]
    if options.records.loss_mask:
        masks = {f"{options.out}-{k}{MASK_NAME}": v["tokens"] for k, v in position.writer["splits"].items()}
        sizes |= {prefix + ".bin": size for prefix, size in masks.items()}
        others += [prefix + ".idx" for prefix in masks]
    others += [options.out + ".json", options.out + options.tokenizer.extension]
    if options.records.chat_template is not None:
        others += [options.out + name for name in _companions(options)]
    return all(os.path.isfile(p) and os.path.getsize(p) == size for p, size in sizes.items()) and all(
        map(os.path.isfile, others)
    )


def _result(position: Position, *, was_complete: bool = False) -> TokenizeResult:
    assert position.writer is not None
    return TokenizeResult(position.writer["splits"], position.records, position.left_out, was_complete)


def _described(inputs: Sequence[str]) -> str:
    return str(inputs[0]) + (f" and {len(inputs) - 1} more" if len(inputs) > 1 else "")


def report(out: str, result: TokenizeResult, log: Callable[[str], None] = print) -> None:
    """Prints the counts; those of skipped records go to stderr."""
    words = {
        "missing": "without the field",
        "wrong": "of the wrong type or rejected by the chat template",
        "empty": "without text",
        "invalid": "that are not valid UTF-8 or JSON",
    }
    for kind in SKIP_REASONS:
        if result.skipped.get(kind):
            print(f"skipped {result.skipped[kind]} records {words[kind]}", file=sys.stderr)
    if result.was_complete:
        log(f"{out}: already complete, nothing to do (--restart starts over)")
    for split in sorted(result.splits):
        counts = result.splits[split]
        log(
            f"{out}-{split}: {counts['documents']} documents, {counts['tokens']} tokens, "
            f"{counts['bytes'] / counts['tokens']:.2f} bytes per token"
            + (f", {counts['trained_tokens']} in the loss mask" if "trained_tokens" in counts else "")
        )
