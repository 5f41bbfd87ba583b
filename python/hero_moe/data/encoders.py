"""Text to token ids, without an end-of-document id.

Ids are identical to those of `hero data tokenize`, also for text that looks like a special token: a
`tokenizer.json` maps it to the token's id in documents and conversations (as the `tokenizers` library always
does). Only unigram models of SentencePiece may differ, where two segmentations have the same probability: the program
links another version. SentencePiece keeps the text of control pieces as text in documents; only in conversations, where a
chat template wrote them, control pieces become their ids."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2

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

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of a conversation, and the range of its characters that each token stands for."""
        found = self._tokenizer.encode(text, add_special_tokens=False)
        return found.ids, found.offsets

    def unknown_tokens(self, rendered: Sequence[str]) -> list[str]:
        """The given special tokens that are not in the vocabulary."""
        return [token for token in rendered if self._tokenizer.token_to_id(token) is None]


def keeps_text(data: bytes) -> bool:
    """Whether a SentencePiece model encodes text as it is, as src/tokenizer/sentencepiece_model.cpp defines it:
    characters without a piece become bytes, and there are no character maps and no added or removed spaces."""
    model = sentencepiece_model_pb2.ModelProto.FromString(data)  # type: ignore[attr-defined]
    before, after = model.normalizer_spec, model.denormalizer_spec
    return (
        model.trainer_spec.byte_fallback
        and before.escape_whitespaces
        and not (before.add_dummy_prefix or before.remove_extra_whitespaces)
        and not (before.precompiled_charsmap or after.precompiled_charsmap)
    )


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
        self._lossless = keeps_text(file.data) and len(self._space_symbol) == 3 and survives
        self._adjacent: np.ndarray | None = None

    def encode(self, texts: Sequence[str], *, conversation: bool) -> list[list[int]]:
        """The ids of each text; control pieces become their ids in conversations only."""
        return [self._conversation(text) if conversation else self._document(text) for text in texts]

    def unknown_tokens(self, rendered: Sequence[str]) -> list[str]:
        """The given special tokens that are not in the vocabulary."""
        unknown = self._pieces.unk_id()
        return [token for token in rendered if self._pieces.piece_to_id(token) == unknown]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of a conversation, and the range of its characters that each token stands for; the first
        bytes of a character have an empty range."""
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        at = 0
        for part, fixed in self._conversation_parts(text):
            if fixed is None:
                found = self._pieces.encode(part, return_type="offset_mapping")
                ids += found["ids"]
                offsets += [(at + begin, at + end) for begin, end in found["offsets"]]
            else:
                ids += fixed
                offsets += [(at, at)] * (len(fixed) - 1) + [(at, at + len(part))]
            at += len(part)
        return ids, offsets

    def _conversation(self, text: str) -> list[int]:
        return self._ids(self._conversation_parts(text))

    def _document(self, text: str) -> list[int]:
        return self._ids(self._document_parts(text))

    def _ids(self, parts: Iterator[tuple[str, list[int] | None]]) -> list[int]:
        ids: list[int] = []
        for part, fixed in parts:
            ids += self._pieces.encode(part) if fixed is None else fixed
        return ids

    def _conversation_parts(self, text: str) -> Iterator[tuple[str, list[int] | None]]:
        """The text in parts, with their ids if they are not encoded as text."""
        at = 0
        for token in self._control_text.finditer(text) if self._control_text else ():
            yield from self._document_parts(text[at : token.start()])
            yield token[0], [self._control[token[0]]]
            at = token.end()
        yield from self._document_parts(text[at:])

    def _document_parts(self, text: str) -> Iterator[tuple[str, list[int] | None]]:
        if not self._lossless:
            yield text, None
            return
        for part in self._split_long_words(text):
            for number, plain in enumerate(part.split(SPACE_SYMBOL)):
                if number:
                    yield SPACE_SYMBOL, self._space_symbol
                if plain:
                    yield plain, None

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
