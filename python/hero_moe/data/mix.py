"""Mixes: a TOML file that lists corpora, how to read each, and its weight in the blend.

[corpus.NAME]
dataset = "owner/name"      # where it is published; documentation only
path = "folder"             # under --root; or a list of paths and globs
weight = 0.25
text_key = "text"           # or template, messages, prompt and response, chat_template; config, split
"""

from __future__ import annotations

import os
import shlex
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hero_moe.data.chat import find_template
from hero_moe.data.errors import DataError, decode_utf8
from hero_moe.data.records import RecordFormat
from hero_moe.data.sources import find_sources
from hero_moe.data.token_writer import write_atomically
from hero_moe.data.tokenization import TokenizeOptions, TokenizeResult, report, tokenize

FORMAT_KEYS = ("text_key", "template", "messages", "prompt", "response")
KEYS = ("dataset", "path", "weight", *FORMAT_KEYS, "chat_template", "config", "split")


@dataclass(frozen=True)
class Corpus:
    """One corpus of a mix; `reading` holds the `RecordFormat` keys in the file."""

    name: str
    dataset: str
    paths: tuple[str, ...]
    weight: float
    reading: dict[str, Any]
    chat_template: str = "plain"
    config: str | None = None
    split: str = "train"

    @property
    def conversation(self) -> bool:
        return bool({"messages", "prompt"} & self.reading.keys())


def load_mix(path: str) -> list[Corpus]:
    """The corpora of a mix file. Raises `DataError` with the file and the key."""
    try:
        with open(path, "rb") as file:
            text = decode_utf8(file.read(), path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path}: invalid TOML ({error})") from error
    for key in content:
        if key != "corpus":
            raise DataError(f"{path}: {key}: unknown key, expected [corpus.NAME] tables")
    tables = content.get("corpus")
    if not isinstance(tables, dict) or not tables:
        raise DataError(f"{path}: found no corpus, expected [corpus.NAME] tables")
    return [_corpus(path, name, table) for name, table in tables.items()]


def _corpus(file: str, name: str, table: Any) -> Corpus:
    where = f"{file}: corpus.{name}"
    if not isinstance(table, dict):
        raise DataError(f"{where}: found {table!r}, expected a table")
    for key, value in table.items():
        if key not in KEYS:
            raise DataError(f"{where}.{key}: unknown key, expected one of {', '.join(KEYS)}")
        if key not in ("path", "weight") and not isinstance(value, str):
            raise DataError(f"{where}.{key}: found {value!r}, expected a string")
    paths = table.get("path")
    paths = [paths] if isinstance(paths, str) else paths
    if not isinstance(paths, list) or not paths or not all(isinstance(p, str) for p in paths):
        raise DataError(f"{where}.path: found {table.get('path')!r}, expected a path or a list of paths")
    weight = table.get("weight")
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < float("inf"):
        raise DataError(f"{where}.weight: found {weight!r}, expected a number above 0")
    reading = {key: table[key] for key in FORMAT_KEYS if key in table} or {"text_key": "text"}
    rest = {key: table[key] for key in ("chat_template", "config", "split") if key in table}
    corpus = Corpus(name, table.get("dataset", ""), tuple(paths), float(weight), reading, **rest)
    try:
        _records(corpus, corpus.chat_template, options=None, loss_mask=False)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    return corpus


def _records(
    corpus: Corpus, chat_template: str, options: TokenizeOptions | None, loss_mask: bool
) -> RecordFormat:
    """How to read a corpus. Without options this only validates the mix: the plain template replaces one from
    the tokenizer or a file."""
    if not corpus.conversation:
        return RecordFormat(**corpus.reading)
    if options is None:
        return RecordFormat(**corpus.reading, chat_template=find_template("plain", None))
    template = find_template(chat_template, options.tokenizer.chat_template)
    return RecordFormat(
        **corpus.reading,
        chat_template=template,
        special_tokens=options.tokenizer.special_tokens,
        loss_mask=loss_mask,
    )


def writes_loss_masks(corpora: Sequence[Corpus], requested: bool | None) -> bool:
    """Whether the corpora get loss masks: all of them or none, because `train.loss_mask` reads one of every
    source. Without a request they do if all are conversations. Raises `DataError` for a request that names
    corpora of text."""
    texts = [corpus.name for corpus in corpora if not corpus.conversation]
    if requested and texts:
        raise DataError(
            f"--loss-mask: found corpora without messages or prompt ({', '.join(texts)}), expected only "
            "conversations: train.loss_mask needs the mask of every source (--only NAME ... selects some)"
        )
    return not texts if requested is None else requested


def _job(
    corpus: Corpus, root: str, out: str, options: TokenizeOptions, chat_template: str | None, masks: bool
) -> TokenizeOptions:
    """Raises `DataError` for missing files and templates."""
    try:
        job = replace(
            options,
            inputs=[os.path.join(root, path) for path in corpus.paths],
            out=os.path.join(out, corpus.name),
            records=_records(corpus, chat_template or corpus.chat_template, options, masks),
            config=corpus.config,
            split=corpus.split,
        )
        find_sources(job.inputs, config=job.config, split=job.split)
    except DataError as error:
        raise DataError(f"{corpus.name}: {error}") from error
    return job


def tokenize_mix(
    corpora: Sequence[Corpus],
    root: str,
    out: str,
    options: TokenizeOptions,
    *,
    chat_template: str | None = None,
    loss_mask: bool | None = None,
    restart: bool = False,
    overwrite: bool = False,
    log: Callable[[str], None] = print,
) -> dict[str, TokenizeResult]:
    """Writes token files OUT/NAME for every corpus, and OUT/blend.txt, the arguments of `hero train --data`.

    `options` holds the settings shared by all corpora; `chat_template` overrides each corpus's own. With loss
    masks by `writes_loss_masks`. Finished corpora are skipped; an unfinished one resumes."""
    masks = writes_loss_masks(corpora, loss_mask)
    missing = [
        f"{corpus.name} ({path}{', ' + corpus.dataset if corpus.dataset else ''})"
        for corpus in corpora
        for path in corpus.paths
        if not any(c in path for c in "*?[") and not os.path.exists(os.path.join(root, path))
    ]
    if missing:
        raise DataError(f"{root}: found no {'; no '.join(missing)} (--only NAME ... selects the others)")
    # All of them before the first one is tokenized, which may take hours.
    jobs = {corpus.name: _job(corpus, root, out, options, chat_template, masks) for corpus in corpora}
    results = {}
    for name, job in jobs.items():
        try:
            results[name] = tokenize(job, restart=restart, overwrite=overwrite)
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
        report(job.out, results[name], log)
    weights = [repr(corpus.weight).removesuffix(".0") for corpus in corpora]
    prefixes = [os.path.join(out, corpus.name) for corpus in corpora]
    blend = " ".join(shlex.quote(f"{weight}:{prefix}") for weight, prefix in zip(weights, prefixes))
    write_atomically(os.path.join(out, "blend.txt"), (blend + "\n").encode())
    log(f"hero train --data {blend}")
    return results
