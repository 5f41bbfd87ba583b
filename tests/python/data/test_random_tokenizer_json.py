"""Random byte-level BPE pipelines: `hero data tokenize` gives the ids of `tokenizers`, or rejects the file by key."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from data_files import some_texts
from program import hero
from random_cases import Case, expect_success, property_tests, reproduce
from random_text import END, sample_texts, tokenize_words, written_ids

BEHAVIORS = ["isolated", "removed", "contiguous", "merged_with_previous", "merged_with_next"]
REGEXES = [
    r"\s+", r"\p{L}+|\p{N}{1,3}", r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+", r"\s+(?!\S)|\s+", r"[^\S\n]+",
    r"\p{Lu}\p{Ll}*", r"[\p{M}\p{P}]", r"(?<=\n).", r"\d+?", r"\b\w+\b", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\n{2,}",
    r"[^a-z]", r"\A.", r".\z", r"[一-龥]+", r"(ab|a)*b?", r"\W", r"x*",
]  # fmt: skip
STRINGS = [" ", "--", "e\u0301", "\n", "def ", "|", "  ", "路"]
CONTENTS = ["<think>", "<think>!", "  ", " x ", "def", "ÅNGström", "\n\n", "é", "路由", "</s>", "e"]
FORMS = {
    "NFC": normalizers.NFC,
    "NFD": normalizers.NFD,
    "NFKC": normalizers.NFKC,
    "NFKD": normalizers.NFKD,
    "Lowercase": normalizers.Lowercase,
}


def steps() -> st.SearchStrategy[Case]:
    behavior = st.sampled_from(BEHAVIORS)
    split = {"behavior": behavior, "invert": st.booleans()}
    return st.one_of(
        st.fixed_dictionaries({"regex": st.sampled_from(REGEXES), **split}),
        st.fixed_dictionaries({"string": st.sampled_from(STRINGS), **split}),
        st.fixed_dictionaries({"individual_digits": st.booleans()}),
        st.fixed_dictionaries({"punctuation": behavior}),
    )


def added_tokens() -> st.SearchStrategy[Case]:
    flags = {name: st.booleans() for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    return st.fixed_dictionaries({"content": st.sampled_from(CONTENTS), **flags})


def cases() -> st.SearchStrategy[Case]:
    return st.fixed_dictionaries(
        {
            "normalizers": st.lists(st.sampled_from(list(FORMS)), max_size=2),
            "steps": st.lists(steps(), max_size=3),
            "add_prefix_space": st.booleans(),
            "use_regex": st.booleans(),
            "every_byte": st.booleans(),
            "unknown": st.booleans(),
            "fuse_unknown": st.booleans(),
            "ignore_merges": st.booleans(),
            "added": st.lists(added_tokens(), max_size=4, unique_by=lambda token: token["content"]),
            "seed": st.integers(0, 2**16),
        }
    )


def make_step(step: Case) -> pre_tokenizers.PreTokenizer:
    if "individual_digits" in step:
        return pre_tokenizers.Digits(step["individual_digits"])
    if "punctuation" in step:
        return pre_tokenizers.Punctuation(step["punctuation"])
    pattern = Regex(step["regex"]) if "regex" in step else step["string"]
    return pre_tokenizers.Split(pattern, step["behavior"], step["invert"])


def make_tokenizer(case: Case) -> Tokenizer:
    unknown = {"unk_token": "<unk>", "fuse_unk": case["fuse_unknown"]} if case["unknown"] else {}
    tokenizer = Tokenizer(models.BPE(ignore_merges=case["ignore_merges"], **unknown))
    if case["normalizers"]:
        tokenizer.normalizer = normalizers.Sequence([FORMS[name]() for name in case["normalizers"]])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *map(make_step, case["steps"]),
            pre_tokenizers.ByteLevel(case["add_prefix_space"], use_regex=case["use_regex"]),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=[END, "<unk>"] if case["unknown"] else [END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if case["every_byte"] else [],
        show_progress=False,
    )
    tokenizer.train_from_iterator(some_texts(300, seed=case["seed"]), trainer)
    tokenizer.add_tokens([AddedToken(**token) for token in added(case)])
    return tokenizer


def added(case: Case) -> list[Case]:
    """The added tokens. `tokenizers` fails on some texts if tokens strip whitespace and others are whitespace."""
    tokens: list[Case] = case["added"]
    if any(token["content"].isspace() for token in tokens):
        return [{**token, "lstrip": False, "rstrip": False} for token in tokens]
    return tokens


def check(case: Case, folder: Path) -> None:
    tokenizer = make_tokenizer(case)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    texts = sample_texts(case["seed"])
    result = hero(*tokenize_words(path, texts, folder))
    expect_success(result.returncode, result.stderr, ["pre_tokenizer"])
    ours = written_ids(folder)
    expected = tokenizer.encode_batch(texts, add_special_tokens=False)
    for text, ids, encoding in zip(texts, ours, expected, strict=True):
        assert ids == encoding.ids, f"{text!r}: {ids}, expected {encoding.ids}"


test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    reproduce(check)
