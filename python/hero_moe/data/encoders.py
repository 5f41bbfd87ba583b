"""Text to token ids, without an end-of-document id.

Ids are those of `hero data tokenize`. So text that looks like a special token is treated as there: a
`tokenizer.json` makes it the token's id in documents and conversations alike (the `tokenizers` library does
that everywhere), while SentencePiece leaves the text of its control pieces alone in documents. Only in
conversations, where a chat template wrote them, control pieces become their ids."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import sentencepiece
import tokenizers

from hero_moe.data.tokenizer_file import TokenizerFile

SPACE_SYMBOL = "\u2581"  # SentencePiece's own sign for the space
LONGEST_WORD = 1 << 16  # bytes; src/tokenizer/tokenizer.cpp cuts longer words
PROBE = "  a  b\t\n\n \ufb01\u00a0\r\n\x01\U0001f986 "


class JsonEncoder:
    """A `tokenizer.json`, any that the `tokenizers` library runs."""

    def __init__(self, file: TokenizerFile) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_str(file.data.decode())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, texts: Sequence[str], *, conversation: bool) -> list[list[int]]:
        """The ids of each text; special tokens in the texts become their ids either way."""
        return [
            found.ids for found in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        ]

    def unknown_tokens(self, rendered: Sequence[str]) -> list[str]:
        """Those of the given special tokens that the vocabulary lacks."""
        return [token for token in rendered if self._tokenizer.token_to_id(token) is None]


class PieceEncoder:
    """A SentencePiece model. For lossless vocabularies U+2581 is always written as its three bytes."""

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
        self._joined: np.ndarray | None = None

    def encode(self, texts: Sequence[str], *, conversation: bool) -> list[list[int]]:
        """The ids of each text; control pieces become their ids in conversations only."""
        return [self._conversation(text) if conversation else self._document(text) for text in texts]

    def unknown_tokens(self, rendered: Sequence[str]) -> list[str]:
        """Those of the given special tokens that the vocabulary lacks."""
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
        for part in self._without_long_words(text):
            for number, plain in enumerate(part.split(SPACE_SYMBOL)):
                if number:
                    ids += self._space_symbol
                if plain:
                    ids += self._pieces.encode(plain)
        return ids

    def _without_long_words(self, text: str) -> Iterator[str]:
        """The text, cut where the program cuts words of more than 64 KiB."""
        data = text.encode()
        if len(data) <= LONGEST_WORD:
            yield text
            return
        if self._joined is None:
            self._joined = self._side_by_side()
        codes = np.frombuffer(data, np.uint8)
        inside = (codes & 0xC0) == 0x80  # a character
        ends = np.flatnonzero(~inside[1:] & ~self._joined[codes[:-1], codes[1:]]) + 1
        cuts = [0]
        for begin, end in pairwise([0, *ends.tolist(), len(data)]):
            while end - begin > LONGEST_WORD:
                begin += LONGEST_WORD
                while inside[begin]:
                    begin -= 1
                cuts.append(begin)
        for begin, end in pairwise([*cuts, len(data)]):
            yield data[begin:end].decode()

    def _side_by_side(self) -> np.ndarray:
        """By two bytes: whether they stand side by side in some piece, [256, 256]."""
        joined = np.zeros((256, 256), bool)
        not_text = (self._pieces.is_byte, self._pieces.is_control, self._pieces.is_unknown)
        for number in range(self._pieces.get_piece_size()):
            if any(is_special(number) for is_special in not_text):
                continue
            piece = self._pieces.id_to_piece(number).replace(SPACE_SYMBOL, " ").encode()
            for pair in pairwise(piece):
                joined[pair] = True
        return joined


def make_encoder(file: TokenizerFile) -> JsonEncoder | PieceEncoder:
    """The encoder of a tokenizer; one per process."""
    return PieceEncoder(file) if file.kind == "sentencepiece" else JsonEncoder(file)
