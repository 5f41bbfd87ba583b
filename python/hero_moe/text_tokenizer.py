"""Tokenizers of model folders: transformers' files if present, else a SentencePiece tokenizer.model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json")


def open_tokenizer(path: Path, **options: Any) -> Any:
    """Opens a folder's tokenizer, or a SentencePiece file.

    Args:
        path: a folder with transformers' tokenizer files or a tokenizer.model, or a SentencePiece file.
        options: for `AutoTokenizer.from_pretrained`.

    Returns:
        A tokenizer of transformers, or a `SentencePieceTokenizer`.

    Raises:
        ValueError: if it is missing or cannot be opened, with the folder or file.
    """
    folder = path.is_dir()
    own = not folder or not any((path / name).is_file() for name in _FILES)
    file = path / "tokenizer.model" if folder else path
    if own and not file.is_file():
        raise ValueError(f"{path}: found no tokenizer, expected {', '.join(_FILES)} or tokenizer.model")
    try:
        if own:
            return SentencePieceTokenizer(file)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(path), **options)
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path}: tokenizer: {' '.join(str(error).split())}") from error


class SentencePieceTokenizer:
    """A tokenizer.model with the part of transformers' tokenizer interface that HeroLM needs.

    Text never encodes to control pieces, such as the end of a document.
    """

    chat_template = None

    def __init__(self, file: Path) -> None:
        from sentencepiece import SentencePieceProcessor

        self._pieces = SentencePieceProcessor(model_file=str(file))
        self.name_or_path = str(file)
        self.bos_token_id, self.eos_token_id = (
            id if id >= 0 else None for id in (self._pieces.bos_id(), self._pieces.eos_id())
        )

    def __len__(self) -> int:
        return len(self._pieces)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """The ids of a text; `add_special_tokens` prepends the BOS token, if there is one."""
        bos = [self.bos_token_id] if add_special_tokens and self.bos_token_id is not None else []
        return bos + self._pieces.encode(text)

    def decode(self, ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of the ids; skips ids outside the vocabulary."""
        ids = [ids] if isinstance(ids, int) else ids
        text = ""
        for control, run in groupby((i for i in ids if i < len(self)), self._pieces.is_control):
            if not control:
                text += self._pieces.decode(list(run))
            elif not skip_special_tokens:
                text += "".join(map(self._pieces.id_to_piece, run))
        return text
