"""Random conversations and chat templates: the loss mask marks the tokens with a byte of what the template writes for
the assistant; the test builds the same text from its parts."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import sentencepiece
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from data_files import documents, masks, options, shared_bpe, train_sentencepiece, write_rows
from hero_moe.data import RecordFormat, load_tokenizer, tokenize
from random_cases import Case, property_tests, reproduce
from random_text import mixed_text
from strategies import DrawFn, option

ROLES = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
HEADERS = ["<|im_start|>{}\n", "[{}] ", "{}:", "<{}>\n\n", ""]
TAILS = ["<|im_end|>\n", "\n\n", " </s>", "", " \n", "<|endoftext|>", "🦆"]


@st.composite
def cases(draw: DrawFn) -> Case:
    roles = draw(st.lists(option(*ROLES), min_size=1, max_size=6))
    return {
        "roles": roles,
        "seed": draw(st.integers(0, 2**32)),
        "conversations": draw(st.integers(1, 5)),
        "from": draw(st.booleans()),
        "header": draw(option(*HEADERS)),
        "tail": draw(option(*TAILS)),
        "before": draw(option("", "<s>", "\n")),
        "between": draw(option("", "\n\n", "|")),
        "trim": draw(st.booleans()),
        # What is in the generation block, if any: the content, with what precedes and follows it.
        "block": draw(option(None, None, "content", "content tail", "header content tail")),
        "sentencepiece": draw(st.booleans()),
        "workers": draw(st.integers(1, 2)),
    }


def template(case: Case) -> str:
    parts = {
        "header": "{{ " + repr(case["header"]).replace("{}", "' ~ m.role ~ '") + " }}",
        "content": "{{ m.content | trim }}" if case["trim"] else "{{ m.content }}",
        "tail": "{{ " + repr(case["tail"]) + " }}",
    }
    plain = "".join(parts.values())
    turn = plain
    if case["block"]:
        inside = "".join(parts[name] for name in case["block"].split())
        marked = plain.replace(inside, "{% generation %}" + inside + "{% endgeneration %}")
        turn = "{% if m.role == 'assistant' %}" + marked + "{% else %}" + plain + "{% endif %}"
    between = "{% if not loop.first %}{{ " + repr(case["between"]) + " }}{% endif %}"
    return "{{ " + repr(case["before"]) + " }}{% for m in messages %}" + between + turn + "{% endfor %}"


def contents(case: Case) -> list[list[str]]:
    """Of every message of all conversations."""
    rng = random.Random(case["seed"])
    kinds = [lambda: "", lambda: " \n", lambda: f"\u00a0{mixed_text(rng)} ", lambda: mixed_text(rng)]
    return [[rng.choice(kinds)() for _ in case["roles"]] for _ in range(case["conversations"])]


def written(case: Case, texts: list[str]) -> tuple[str, list[tuple[int, int]]]:
    """A conversation and the assistant's ranges of its bytes."""
    text, ranges = case["before"].encode(), []
    for number, (role, content) in enumerate(zip(case["roles"], texts)):
        header = case["header"].replace("{}", ROLES[role])
        content = content.strip() if case["trim"] else content
        pieces = [part.encode() for part in (header, content, case["tail"])]
        text += case["between"].encode() * (number > 0)
        begins = np.cumsum([len(text), *map(len, pieces)]).tolist()
        if ROLES[role] == "assistant":
            first = begins[0] if case["block"] and "header" in case["block"] else begins[1]
            last = begins[3] if case["block"] and "tail" in case["block"] else begins[2]
            if not case["block"]:
                last += len(case["tail"].rstrip().encode())
            ranges.append((first, last))
        text += b"".join(pieces)
    return text.decode(), ranges


@cache
def sentencepiece_model() -> tuple[TemporaryDirectory[str], Path]:
    folder = TemporaryDirectory(prefix="hero-moe-pieces-")
    return folder, train_sentencepiece(Path(folder.name))


def token_bytes(case: Case, file: Path, ids: list[int]) -> list[bytes]:
    """The text of each token."""
    if not case["sentencepiece"]:
        tokenizer = Tokenizer.from_file(str(file / "tokenizer.json"))
        added = {number: token.content for number, token in tokenizer.get_added_tokens_decoder().items()}
        byte_of = byte_alphabet()
        return [
            added[number].encode()
            if number in added
            else bytes(byte_of[c] for c in tokenizer.id_to_token(number) or "")
            for number in ids
        ]
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(file))
    names = [pieces.id_to_piece(number) for number in ids]
    return [
        bytes([int(name[3:5], 16)]) if pieces.is_byte(number) else name.replace("\u2581", " ").encode()
        for number, name in zip(ids, names)
    ]


@cache
def byte_alphabet() -> dict[str, int]:
    """The characters for bytes in a byte-level vocabulary (GPT-2): printable ones stand for themselves."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    alphabet = {chr(byte): byte for byte in own} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
    assert decoders.ByteLevel().decode([chr(0x100 + 32)]) == " "
    return alphabet


def expected_mask(tokens: list[bytes], ranges: list[tuple[int, int]]) -> list[int]:
    ends = np.cumsum([len(token) for token in tokens]).tolist()
    begins = [0, *ends[:-1]]
    return [
        int(any(max(begin, first) < min(end, last) for first, last in ranges))
        for begin, end in zip(begins, ends)
    ]


def check(case: Case, folder: Path) -> None:
    file = sentencepiece_model()[1] if case["sentencepiece"] else shared_bpe()
    tokenizer = load_tokenizer(str(file))
    role, content = ("from", "value") if case["from"] else ("role", "content")
    all_texts = contents(case)
    rows: list[dict[str, Any]] = [
        {"m": [{role: name, content: text} for name, text in zip(case["roles"], texts)]}
        for texts in all_texts
    ]
    source = write_rows(folder / "chats.jsonl", rows)
    records = RecordFormat(
        messages="m",
        chat_template=template(case),
        special_tokens=tokenizer.special_tokens,
        loss_mask=True,
    )
    tokenize(
        options(tokenizer, [source], folder / "chat", records=records, valid_fraction=0, skip_invalid=True)
    )
    found = list(zip(documents(folder / "chat-train"), masks(folder / "chat-train"), strict=True))
    conversations = [(text, ranges) for text, ranges in (written(case, texts) for texts in all_texts) if text]
    assert len(found) == len(conversations)
    answered = int(ROLES[case["roles"][-1]] == "assistant")
    for (ids, mask), (text, ranges) in zip(found, conversations):
        # A text that ends with the end token gets no other.
        ended = text.endswith(tokenizer.eos_token)
        tokens = token_bytes(case, file, ids if ended else ids[:-1])
        assert ids[-1] == tokenizer.eos_id and b"".join(tokens) == text.encode()
        assert mask == expected_mask(tokens, ranges) + ([] if ended else [answered]), text


test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    reproduce(check)
