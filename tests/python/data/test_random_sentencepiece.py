"""Random SentencePiece models: `hero data tokenize`, hero_moe.data and the tokenizer of a checkpoint, as transformers
loads it, give the ids of the sentencepiece library.

Models of other projects normalize text, add a space in front of it or remove spaces; ours do not. Ours also encode
U+2581, which SentencePiece uses for the space, as three bytes.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import strategies as st
from transformers import AutoTokenizer

from data_files import some_texts
from hero_moe.data import load_tokenizer
from hero_moe.data.encoders import make_encoder
from program import checkpoint, run_hero, training
from random_cases import Case, Rejected, property_tests, reproduce
from random_text import our_ids, sample_texts

SPACE_SYMBOL = "\u2581"
OWN_RULE = "own"  # a character map from a file: A becomes a


def cases() -> st.SearchStrategy[Case]:
    return st.fixed_dictionaries(
        {
            "model_type": st.sampled_from(
                ["bpe", "bpe", "bpe", "unigram", "unigram", "unigram", "char", "word"]
            ),
            "normalization_rule_name": st.sampled_from(
                ["identity", "identity", "identity", "nmt_nfkc", "nfkc_cf", OWN_RULE]
            ),
            "byte_fallback": st.sampled_from([True, True, False]),
            "user_defined_symbols": st.lists(
                st.sampled_from(["<sep>", "ab", "  ", "\u2581\u2581", "\n", "é", "routes"]),
                unique=True,
                max_size=3,
            ),
            **{
                name: st.booleans()
                for name in (
                    "add_dummy_prefix",
                    "remove_extra_whitespaces",
                    "treat_whitespace_as_suffix",
                    "allow_whitespace_only_pieces",
                    "split_by_whitespace",
                    "split_by_unicode_script",
                    "split_digits",
                )
            },
            "seed": st.integers(0, 2**16),
        }
    )


def train(case: Case, folder: Path) -> bytes:
    """A model with the options of the case. A unigram model has no user-defined pieces: the program's version of the
    library does not always keep them whole."""
    options = {name: value for name, value in case.items() if name != "seed"}
    if case["model_type"] == "unigram":
        del options["user_defined_symbols"]
    if options["normalization_rule_name"] == OWN_RULE:
        (folder / "rules.tsv").write_text("41\t61\n")
        options = {
            **options,
            "normalization_rule_name": "",
            "normalization_rule_tsv": str(folder / "rules.tsv"),
        }
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(some_texts(300, seed=case["seed"])),
        model_writer=model,
        vocab_size=420,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def keeps_text(case: Case) -> bool:
    plain = case["normalization_rule_name"] == "identity"
    return (
        plain
        and case["byte_fallback"]
        and not case["add_dummy_prefix"]
        and not case["remove_extra_whitespaces"]
    )


def expected_ids(case: Case, pieces: sentencepiece.SentencePieceProcessor, text: str) -> list[int]:
    if not keeps_text(case):
        return pieces.encode(text)
    symbol = [pieces.piece_to_id(f"<0x{byte:02X}>") for byte in SPACE_SYMBOL.encode()]
    first, *others = (pieces.encode(part) for part in text.split(SPACE_SYMBOL))
    return first + [number for part in others for number in (*symbol, *part)]


def is_rejected(case: Case) -> bool:
    """Word models that the program's version of the library does not encode with."""
    spaces_first = case["add_dummy_prefix"] and not case["treat_whitespace_as_suffix"]
    return case["model_type"] == "word" and not spaces_first


def same(
    case: Case, pieces: sentencepiece.SentencePieceProcessor, ids: list[int], expected: list[int]
) -> bool:
    """Whether ids are those expected. In unigram models, versions of the library choose differently between
    segmentations of the same probability."""
    if case["model_type"] != "unigram" or ids == expected:
        return ids == expected
    difference = sum(map(pieces.get_score, ids)) - sum(map(pieces.get_score, expected))
    return abs(difference) < 1e-4 and pieces.decode(ids) == pieces.decode(expected)


def check(case: Case, folder: Path) -> None:
    model = folder / "random.model"
    model.write_bytes(train(case, folder))
    texts = sample_texts(case["seed"])
    if is_rejected(case):
        with pytest.raises(AssertionError, match="found model_type word"):
            our_ids(model, texts, folder)
        raise Rejected
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    expected = [expected_ids(case, pieces, text) for text in texts]
    ours = our_ids(model, texts, folder)
    run_hero(*training(folder / "run", folder / "out", {"train.steps": 2}))
    exported = AutoTokenizer.from_pretrained(checkpoint(folder / "run", 2))
    python = make_encoder(load_tokenizer(str(model))).encode(texts, conversation=False)
    for text, found, theirs, wanted in zip(texts, ours, python, expected, strict=True):
        assert same(case, pieces, found, wanted), f"hero data tokenize: {text!r}: {found}, expected {wanted}"
        assert theirs == wanted, f"hero_moe.data: {text!r}: {theirs}, expected {wanted}"
        if SPACE_SYMBOL in text and keeps_text(case) and not exported.is_fast:
            continue  # a space for the library
        loaded = exported.encode(text, add_special_tokens=False)
        assert loaded == wanted, f"AutoTokenizer: {text!r}: {loaded}, expected {wanted}"


test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    reproduce(check)
