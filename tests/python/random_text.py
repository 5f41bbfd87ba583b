"""Random text of many scripts, and its ids by `hero data tokenize`, for the tests of tokenizers."""

from __future__ import annotations

import json
import random
import struct
import unicodedata
from pathlib import Path

import numpy as np

from data_files import some_texts
from program import run_hero

END = "<|endoftext|>"
SCRIPTS = [
    (0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0x980),
    (0xE00, 0xE80), (0x1100, 0x1200), (0x2000, 0x2070), (0x2190, 0x2300), (0x3040, 0x3100), (0x4E00, 0x9FA6),
    (0x9FA6, 0xA000), (0xAC00, 0xD7A4), (0xF900, 0xFB07), (0xFE00, 0xFE10), (0xFF00, 0xFFF0),
    (0x1D400, 0x1D800), (0x1F300, 0x1F700),
]  # fmt: skip
WHOLE = [
    "👩‍👩‍👧", "🏳️‍🌈", "🇩🇪", "e\u0301\u0323", "\u1100\u1161\u11a8", "İ", "ſ", "'ſ", "I'LL", "we'Re", "\u0085",
    "\u180e", "\u2028", "\u3000", "\ufeff", "\ufffd", "\r\n", "\n\n", "\t\t", "    ", "\x00", "\x1c", "½", "²",
    "\u0661\u0662", "1234567",
    "--", ".;", " x ", "don't", "ﬁ", "Ａ", "龦", "▁", END, "<think>", "<think>!", " <left> ", " <right> ", "alone",
    " alone ",
    "ÅNGström", "A\u030angström", "</s>", "<unk>", "<0x41>", "\u00ad", "Ġ",
]  # fmt: skip


def known(c: int) -> bool:
    """Whether Unicode 14 (Python 3.11, PCRE2 10.42) assigns it; newer characters may split differently."""
    return unicodedata.category(chr(c)) not in ("Cn", "Cs")


def mixed_text(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randrange(1, 200)):
        kind, length = rng.randrange(4), rng.randrange(1, 8)
        if kind == 0:
            parts.append(rng.choice(WHOLE))
        elif kind == 1:
            parts.append(rng.choice(" \n\t\r \u00a0") * length)
        else:
            low, high = rng.choice(SCRIPTS)
            parts += [chr(c) for c in (rng.randrange(low, high) for _ in range(length)) if known(c)]
    return "".join(parts) or "-"


def random_text(rng: random.Random) -> str:
    points = (rng.randrange(rng.choice((0x80, 0x3000, 0x110000))) for _ in range(rng.randrange(1, 60)))
    return "".join(chr(c) for c in points if known(c)) or "-"


def sample_texts(seed: int) -> list[str]:
    """About a hundred texts, none of them empty, for a tokenizer trained on `some_texts(300, seed=seed)`."""
    rng = random.Random(seed)
    texts = [text for text in some_texts(40, seed=seed + 1) if text]
    texts += [mixed_text(rng) for _ in range(30)] + [random_text(rng) for _ in range(30)]
    return [*texts, " A  b ", " ", "a"]


def token_documents(prefix: Path) -> list[list[int]]:
    """The documents of Megatron token files with one sequence per document."""
    index = prefix.with_name(prefix.name + ".idx").read_bytes()
    dtype = {4: "<i4", 8: "<u2"}[index[17]]
    lengths = np.frombuffer(index, "<i4", struct.unpack_from("<q", index, 18)[0], 34)
    tokens = np.fromfile(prefix.with_name(prefix.name + ".bin"), dtype)
    return [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])]


def tokenize_words(tokenizer: Path, documents: list[str], folder: Path) -> list[str | Path | int]:
    """The arguments of `hero` that tokenize the documents to `folder`/out-train. Writes them to a file."""
    lines = folder / "documents.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return ["data", "tokenize", "--input", lines, "--tokenizer", tokenizer, "--out", folder / "out",
        "--valid-fraction", 0]  # fmt: skip


def written_ids(folder: Path) -> list[list[int]]:
    """The ids of each document, without the end-of-document id."""
    return [ids[:-1] for ids in token_documents(folder / "out-train")]


def our_ids(tokenizer: Path, documents: list[str], folder: Path) -> list[list[int]]:
    run_hero(*tokenize_words(tokenizer, documents, folder))
    return written_ids(folder)
