"""Small corpora in every format, tokenizers for them, and a token file reader, for the tests of
hero_moe.data."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from hero_moe.data import (
    BUILT_IN,
    RecordFormat,
    TokenizeOptions,
    TokenizerFile,
    load_tokenizer,
    tokenize,
)
from program import run_hero

WORDS = "router history def return \n\t  路由 历史 🦆 \u2581 </s> <0x0A> <|im_end|> é e\u0301 \u00a0 ".split(
    " "
)
EXTENSIONS = ("-train.bin", "-train.idx", "-valid.bin", "-valid.idx", ".json")


def some_texts(count: int, seed: int = 1) -> list[str]:
    """Texts of mixed scripts, some of them empty."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(0, 40))) for _ in range(count)]


def json_lines(rows: Sequence[dict[str, Any]]) -> bytes:
    """Rows as JSON lines, every other one in ASCII."""
    return b"".join(json.dumps(row, ensure_ascii=i % 2 == 0).encode() + b"\n" for i, row in enumerate(rows))


def zstd(data: bytes) -> bytes:
    """A zstd frame."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(data)
    return sink.getvalue().to_pybytes()


def write_rows(path: Path, rows: Sequence[dict[str, Any]], *, group: int = 50, stream: bool = False) -> Path:
    """Writes rows in the format of the file extension; `group` rows per row group or record batch; Arrow in
    the file format, or the stream format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name
    if name.endswith((".jsonl", ".json")):
        path.write_bytes(json_lines(rows))
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress(json_lines(rows)))
    elif name.endswith((".zst", ".zstd")):
        path.write_bytes(zstd(json_lines(rows)))
    elif name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=group)
    else:
        table = pa.Table.from_pylist(list(rows))
        make = pa.ipc.new_stream if stream else pa.ipc.new_file
        with make(str(path), table.schema) as out:
            for batch in table.to_batches(group):
                out.write_batch(batch)
    return path


def train_sentencepiece(folder: Path) -> Path:
    """A SentencePiece model from `hero data tokenizer`, 340 pieces."""
    corpus = write_rows(folder / "pieces.jsonl", [{"text": text} for text in some_texts(300, seed=7)])
    model = folder / "pieces.model"
    run_hero("data", "tokenizer", "--input", corpus, "--vocab-size", 330, "--out", model, "--workers", 1)
    return model


def train_bpe(folder: Path, *, chat_template: str | None = None) -> Path:
    """A folder with a byte-level tokenizer.json and a configuration with the end token <|endoftext|>."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(some_texts(300, seed=7), trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": {"content": "<|endoftext|>", "__type": "AddedToken"},
        "pad_token": "<|endoftext|>",
        **({"chat_template": chat_template} if chat_template else {}),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@cache
def _bpe_folder() -> TemporaryDirectory[str]:
    folder = TemporaryDirectory(prefix="hero-moe-bpe-")
    train_bpe(Path(folder.name))
    return folder


def shared_bpe() -> Path:
    """A folder by `train_bpe` that lasts as long as this process."""
    return Path(_bpe_folder().name)


def options(
    tokenizer: Path | TokenizerFile, inputs: Sequence[Path], out: Path, **more: Any
) -> TokenizeOptions:
    """Options for `tokenize` on one worker."""
    file = tokenizer if isinstance(tokenizer, TokenizerFile) else load_tokenizer(str(tokenizer))
    return TokenizeOptions(
        **{"inputs": list(map(str, inputs)), "out": str(out), "tokenizer": file, "workers": 1, **more}
    )


def some_chats(count: int) -> list[list[dict[str, str]]]:
    """Conversations of a question and an answer with between 1 and 60 tokens."""
    rng = random.Random(3)
    return [
        [
            {"role": "user", "content": f"question {rng.randrange(100)}"},
            {"role": "assistant", "content": "return def router "[: rng.randint(1, 18)] * rng.randint(1, 4)},
        ]
        for _ in range(count)
    ]


def write_chats(
    folder: Path, chats: list[list[dict[str, str]]], name: str = "chat", *, valid_fraction: float = 0.0
) -> Path:
    """The prefix of token files of conversations, with loss masks of the answers."""
    if not (folder / "tokenizer").exists():
        train_bpe(folder / "tokenizer")
    path = write_rows(folder / f"{name}.jsonl", [{"m": chat} for chat in chats])
    records = RecordFormat(messages="m", chat_template=BUILT_IN["chatml"], loss_mask=True)
    tokenizer = load_tokenizer(str(folder / "tokenizer"))
    tokenize(
        options(tokenizer, [path], folder / name, records=records, valid_fraction=valid_fraction),
        restart=True,
        overwrite=True,
    )
    return folder / name


def token_files(prefix: Path) -> dict[str, bytes]:
    """The bytes of all token files at a prefix; OUT replaces the prefix in the JSON file."""
    found = {extension: Path(f"{prefix}{extension}") for extension in EXTENSIONS}
    files = {extension: path.read_bytes() for extension, path in found.items() if path.exists()}
    files[".json"] = files[".json"].replace(f'"{prefix.name}.'.encode(), b'"OUT.')
    return files


def documents(prefix: Path) -> list[list[int]]:
    """The documents of one split."""
    index = Path(f"{prefix}.idx").read_bytes()
    count = int(np.frombuffer(index, "<u8", 1, 18)[0])
    lengths = np.frombuffer(index, "<i4", count, 34)
    tokens = np.frombuffer(Path(f"{prefix}.bin").read_bytes(), "<u2" if index[17] == 8 else "<i4")
    assert len(tokens) == lengths.sum()
    return [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])]


def masks(prefix: Path) -> list[list[int]]:
    """The loss masks of one split, with the same lengths as the documents."""
    index = Path(f"{prefix}-mask.idx").read_bytes()
    assert index[17] == 1  # u8
    lengths = [len(document) for document in documents(prefix)]
    assert np.frombuffer(index, "<i4", len(lengths), 34).tolist() == lengths
    mask = np.frombuffer(Path(f"{prefix}-mask.bin").read_bytes(), np.uint8)
    assert len(mask) == sum(lengths)
    return [part.tolist() for part in np.split(mask, np.cumsum(lengths)[:-1])]
