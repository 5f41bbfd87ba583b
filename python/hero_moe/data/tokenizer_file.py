"""Tokenizer files: their kind, end-of-document token and accompanying configuration.

- `tokenizer.json` files (or a folder that holds one): the `tokenizers` library.
- SentencePiece models from any source: the `sentencepiece` library; ids as from `hero data tokenize`.
- any other folder: `transformers.AutoTokenizer`, if it returns a tokenizer of the `tokenizers` library.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sentencepiece
import tokenizers

from hero_moe.data.errors import DataError, decode_utf8
from hero_moe.json_text import parse_json

# End-of-document tokens if no configuration names one; the first that is an added token.
DEFAULT_EOS_TOKENS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",
    "</s>",
    "<|im_end|>",
)


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer as bytes that any process can load.

    `kind` is "sentencepiece" or "tokenizers"; `vocab_size` is the largest id plus one; `eos_id` ends
    documents; `special_tokens` are the variables of chat templates (bos_token, eos_token, ...).
    """

    kind: str
    data: bytes = field(repr=False)
    vocab_size: int
    eos_id: int
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_template: str | None = None

    @property
    def extension(self) -> str:
        """The file extension of its copy next to token files."""
        return ".model" if self.kind == "sentencepiece" else ".tokenizer.json"

    @property
    def eos_token(self) -> str:
        """The text of the end-of-document token."""
        if self.kind == "sentencepiece":
            return sentencepiece.SentencePieceProcessor(model_proto=self.data).id_to_piece(self.eos_id)
        return tokenizers.Tokenizer.from_str(self.data.decode()).id_to_token(self.eos_id) or ""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def token_dtype(self) -> str:
        """NumPy name of the token type on disk: uint16 where Megatron chooses it, else int32."""
        return "<u2" if self.vocab_size < 65500 else "<i4"


def load_tokenizer(path: str) -> TokenizerFile:
    """The tokenizer at a path, a file or a folder. Raises `DataError` for anything else, and for a vocabulary
    without an end-of-document token."""
    if os.path.isdir(path):
        file = os.path.join(path, "tokenizer.json")
        found = _from_json(file, _read(file)) if os.path.isfile(file) else _from_transformers(path)
    else:
        data = _read(path)
        if data.lstrip()[:1] == b"{":
            found = _from_json(path, data)
        else:
            found = _from_sentencepiece(path, data)
    if found.eos_id < 0:
        raise DataError(
            f"{path}: found no end-of-sequence token, expected one to end documents "
            f"(eos_token in {_companion(path, 'tokenizer_config.json')})"
        )
    return found


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def _from_sentencepiece(path: str, data: bytes) -> TokenizerFile:
    try:
        pieces = sentencepiece.SentencePieceProcessor(model_proto=data) if data else None
    except RuntimeError:
        pieces = None
    if pieces is None or pieces.get_piece_size() == 0:
        raise DataError(
            f"{path}: found {len(data)} bytes, expected a SentencePiece model or a tokenizer.json"
        )
    ids = {"bos_token": pieces.bos_id(), "eos_token": pieces.eos_id(), "unk_token": pieces.unk_id()}
    special = {name: pieces.id_to_piece(number) for name, number in ids.items() if number >= 0}
    return TokenizerFile("sentencepiece", data, pieces.get_piece_size(), pieces.eos_id(), special)


def _from_json(path: str, data: bytes) -> TokenizerFile:
    try:
        tokenizer = tokenizers.Tokenizer.from_str(data.decode())
    except Exception as error:  # the library raises plain Exception
        what = " ".join(str(error).split())
        raise DataError(f"{path}: not a tokenizer.json that the tokenizers library loads ({what})") from error
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    config = _object(_companion(path, "tokenizer_config.json"))
    tokens = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in config.items()
        if name.endswith("_token")
    }
    special = {name: token for name, token in tokens.items() if isinstance(token, str)}
    return TokenizerFile(
        "tokenizers",
        data,
        max(vocabulary.values(), default=-1) + 1,
        _eos_id(tokenizer, tokens.get("eos_token"), path),
        special,
        _chat_template(path, config),
    )


def _companion(path: str, name: str) -> str:
    """The file `name` that belongs to a tokenizer file: FOLDER/NAME of FOLDER/tokenizer.json, PREFIX.NAME of
    PREFIX.tokenizer.json and of PREFIX.json, as in src/tokenizer/companions.cpp."""
    if path.endswith("tokenizer.json"):
        return path.removesuffix("tokenizer.json") + name
    return f"{os.path.splitext(path)[0]}.{name}"


def _eos_id(tokenizer: tokenizers.Tokenizer, token: Any, path: str) -> int:
    """As src/tokenizer/eos_token.cpp."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if token is not None:
        if not isinstance(token, str) or token not in vocabulary:
            where = _companion(path, "tokenizer_config.json")
            raise DataError(f"{where}: eos_token: found {token!r}, expected a token of tokenizer.json")
        return vocabulary[token]
    for name in (
        ("generation_config.json", "config.json") if os.path.basename(path) == "tokenizer.json" else ()
    ):
        file = os.path.join(os.path.dirname(path), name)
        if (number := _object(file).get("eos_token_id")) is None:
            continue
        number = number[0] if isinstance(number, list) and number else number
        largest = max(vocabulary.values(), default=-1)
        if isinstance(number, bool) or not isinstance(number, int) or number not in vocabulary.values():
            raise DataError(
                f"{file}: eos_token_id: found {number!r}, expected the id of a token, 0 to {largest}"
            )
        return number
    added = {entry.content: number for number, entry in tokenizer.get_added_tokens_decoder().items()}
    return next((added[usual] for usual in DEFAULT_EOS_TOKENS if usual in added), -1)


def _chat_template(path: str, config: Mapping[str, Any]) -> str | None:
    file = _companion(path, "chat_template.jinja")
    if os.path.isfile(file):
        return decode_utf8(_read(file), file)
    template = config.get("chat_template")
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict)]
        template = next((entry.get("template") for entry in named if entry.get("name") == "default"), None)
    if template is not None and not isinstance(template, str):
        where = _companion(path, "tokenizer_config.json")
        raise DataError(
            f"{where}: chat_template: found {type(template).__name__}, expected a text or named texts"
        )
    return template


def _from_transformers(folder: str) -> TokenizerFile:
    import transformers

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # custom tokenizer code may raise anything
        raise DataError(f"{folder}: AutoTokenizer cannot load it ({' '.join(str(error).split())})") from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise DataError(
            f"{folder}: found {type(tokenizer).__name__}, a pure Python tokenizer, "
            "expected one with a tokenizer.json"
        )
    vocabulary = backend.get_vocab(with_added_tokens=True)
    end = tokenizer.eos_token_id
    template = tokenizer.chat_template
    return TokenizerFile(
        "tokenizers",
        backend.to_str().encode(),
        max(vocabulary.values(), default=-1) + 1,
        -1 if end is None else end,
        {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)},
        template.get("default") if isinstance(template, dict) else template,
    )


def _object(path: str) -> dict[str, Any]:
    if not os.path.isfile(path):
        return {}
    try:
        value = parse_json(_read(path))
    except ValueError as error:
        raise DataError(f"{path}: invalid JSON ({error})") from error
    return value if isinstance(value, dict) else {}
