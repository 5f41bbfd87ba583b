"""Text to token ids, without an end-of-document id.

Ids are identical to those of `hero data tokenize`, also for text that looks like a special token: a
`tokenizer.json` maps it to the token's id in documents and conversations (as the `tokenizers` library always
does). SentencePiece keeps the text of control pieces as text in documents; only in conversations, where a
chat template wrote them, control pieces become their ids."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import sentencepiece
import tokenizers

from hero_moe.data.tokenizer_file import TokenizerFile

SPACE_SYMBOL = "\u2581"  # SentencePiece's space symbol
MAX_WORD_BYTES = 1 << 16  # src/tokenizer/tokenizer.cpp splits longer words
PROBE = "  a  b\t\n\n \ufb01\u00a0\r\n\x01\U0001f986 "


class JsonEncoder:
    """Any `tokenizer.json` that the `tokenizers` library loads."""

    def __init__(self, file: TokenizerFile) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_str(file.data.decode())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, texts: Sequence[str], *, conversation: bool) -> list[list[int]]:
        """The ids of each text; special tokens in the texts become their ids in both cases."""
        return [
            found.ids for found in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        ]

    def unknown_tokens(self, rendered: Sequence[str]) -> list[str]:
        """The given special tokens that are not in the vocabulary."""
        return [token for token in rendered if self._tokenizer.token_to_id(token) is None]


class SentencePieceEncoder:
    """A SentencePiece model. Lossless vocabularies always encode U+2581 as three bytes."""

    def __init__(self, file: TokenizerFile) -> None:
        self._pieces = sentencepiece.SentencePieceProcessor(model_proto=file.data)
        size = self._pieces.get_piece_size()
        control = {self._pieces.id_to_piece(i): i for i in range(size) if self._pieces.is_control(i)}
        self._control = control
        longest_first = "|".join(map(re.escape, sorted(control, key=len, reverse=True)))
        self._control_text = re.compile(longest_first) if control else None
        names = [self._pieces.piece_to_id(name) for name in ("<0xE2>", "<0x96>", "<0x81>")]
        self._space_symbol = [number for number in names if self._pieces.is_byte(number)]
        survives = self._pieces.decode(self._pieces.encode(PROBE)) == PROBE
        self._lossless = len(self._space_symbol) == 3 and survives
        self._adjacent: np.ndarray | None = None

    def encode(self, texts: Sequence[str], *, conversation: bool) -> list[list[int]]:
        """The ids of each text; control pieces become their ids in conversations only."""
        return [self._conversation(text) if conversation else self._document(text) for text in texts]

    def unknown_tokens(self, rendered: Sequence[str]) -> list[str]:
        """The given special tokens that are not in the vocabulary."""
        unknown = self._pieces.unk_id()
        return [token for token in rendered if self._pieces.piece_to_id(token) == unknown]

    def _conversation(self, text: str) -> list[int]:
        if self._control_text is None:
            return self._document(text)
        ids: list[int] = []
        at = 0
        for token in self._control_text.finditer(text):
            ids += self._document(text[at : token.start()])
            ids.append(self._control[token[0]])
            at = token.end()
        return ids + self._document(text[at:])

    def _document(self, text: str) -> list[int]:
        if not self._lossless:
            return self._pieces.encode(text)
        ids: list[int] = []
        for part in self._split_long_words(text):
            for number, plain in enumerate(part.split(SPACE_SYMBOL)):
                if number:
                    ids += self._space_symbol
                if plain:
                    ids += self._pieces.encode(plain)
        return ids

    def _split_long_words(self, text: str) -> Iterator[str]:
        """The text, split where `hero data tokenize` splits words of more than 64 KiB."""
        data = text.encode()
        if len(data) <= MAX_WORD_BYTES:
            yield text
            return
        if self._adjacent is None:
            self._adjacent = self._adjacent_bytes()
        codes = np.frombuffer(data, np.uint8)
        inside = (codes & 0xC0) == 0x80  # a UTF-8 continuation byte
        ends = np.flatnonzero(~inside[1:] & ~self._adjacent[codes[:-1], codes[1:]]) + 1
        cuts = [0]
        for begin, end in pairwise([0, *ends.tolist(), len(data)]):
            while end - begin > MAX_WORD_BYTES:
                begin += MAX_WORD_BYTES
                while inside[begin]:
                    begin -= 1
                cuts.append(begin)
        for begin, end in pairwise([*cuts, len(data)]):
            yield data[begin:end].decode()

    def _adjacent_bytes(self) -> np.ndarray:
        """Whether two bytes are adjacent in any piece, [256, 256]."""
        joined = np.zeros((256, 256), bool)
        not_text = (self._pieces.is_byte, self._pieces.is_control, self._pieces.is_unknown)
        for number in range(self._pieces.get_piece_size()):
            if any(is_special(number) for is_special in not_text):
                continue
            piece = self._pieces.id_to_piece(number).replace(SPACE_SYMBOL, " ").encode()
            for pair in pairwise(piece):
                joined[pair] = True
        return joined


def make_encoder(file: TokenizerFile) -> JsonEncoder | SentencePieceEncoder:
    """The encoder of a tokenizer; one per process."""
    return SentencePieceEncoder(file) if file.kind == "sentencepiece" else JsonEncoder(file)
