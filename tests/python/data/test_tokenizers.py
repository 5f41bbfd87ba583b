"""Hugging Face tokenizer.json files: same ids as `tokenizers`; AutoTokenizer loads the written files."""

from __future__ import annotations

import json
import random
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from program import checkpoint, hero, run_hero, training
from random_text import END, mixed_text, our_ids, random_text

# The patterns in the models' published files.
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
DEEPSEEK = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    (
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ).replace(r"\r\n", "\r\n"),  # the file contains the literal characters
]


def split(*patterns: str) -> pre_tokenizers.PreTokenizer:
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def bpe(ignore_merges: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def gpt2() -> Tokenizer:
    tokenizer = bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def qwen3() -> Tokenizer:
    tokenizer = bpe()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split(QWEN)
    return tokenizer


def llama3() -> Tokenizer:
    tokenizer = bpe(ignore_merges=True)
    tokenizer.pre_tokenizer = split(LLAMA3)
    return tokenizer


def deepseek_v3() -> Tokenizer:
    tokenizer = bpe()
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = split(*DEEPSEEK)
    return tokenizer


def everything_else() -> Tokenizer:
    """Features the others do not cover: prefix space, digits, punctuation, behaviors, kinds of added
    tokens."""
    tokenizer = bpe()
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split("--", "merged_with_next"),
            pre_tokenizers.Split(Regex(r"[.;]"), "merged_with_previous"),
            pre_tokenizers.Split(Regex(r"\w+"), "contiguous", invert=True),
            pre_tokenizers.Split(Regex(r"\bx\b|q"), "removed"),
            pre_tokenizers.Punctuation("contiguous"),
            pre_tokenizers.ByteLevel(add_prefix_space=True),
        ]
    )
    return tokenizer


KINDS = {kind.__name__: kind for kind in (gpt2, qwen3, llama3, deepseek_v3, everything_else)}
ADDED = [
    AddedToken("<think>", normalized=False),
    AddedToken("<think>!", normalized=False),
    AddedToken("<left>", lstrip=True, normalized=False),
    AddedToken("<right>", rstrip=True, normalized=False),
    AddedToken("alone", single_word=True, normalized=False),
    AddedToken("ÅNGström", normalized=True),
    AddedToken("  ", normalized=False),
]


@pytest.fixture(scope="module")
def documents() -> list[str]:
    """About 2.6 MB: sources of the standard library, mixed scripts and whitespace, and random characters."""
    rng, sources = random.Random(7), []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        sources.append(path.read_text(encoding="utf-8"))
        if sum(map(len, sources)) > 1_600_000:
            break
    mixed = [mixed_text(rng) for _ in range(700)]
    return sources + mixed + [random_text(rng) for _ in range(3000)]


@pytest.fixture(scope="module")
def trained(documents: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the path of a tokenizer.json of a kind, trained once."""
    folder = tmp_path_factory.mktemp("tokenizers")

    def train(kind: str) -> Path:
        path = folder / kind / "tokenizer.json"
        if not path.exists():
            tokenizer = KINDS[kind]()
            trainer = trainers.BpeTrainer(
                vocab_size=2000,
                special_tokens=[END],
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                show_progress=False,
            )
            tokenizer.train_from_iterator(documents[::7], trainer)
            tokenizer.add_tokens(ADDED)
            path.parent.mkdir()
            tokenizer.save(str(path))
        return path

    return train


@pytest.mark.parametrize("kind", KINDS)
def test_same_ids_as_tokenizers(
    kind: str, documents: list[str], trained: Callable[[str], Path], tmp_path: Path
) -> None:
    path = trained(kind)
    theirs = Tokenizer.from_file(str(path))
    ours = our_ids(path, documents, tmp_path)
    assert sum(len(text.encode()) for text in documents) > 2_200_000
    assert len(ours) == len(documents)
    expected = theirs.encode_batch(documents, add_special_tokens=False)
    for text, found, encoding in zip(documents, ours, expected, strict=True):
        assert found == encoding.ids, text[:200]


def test_large_vocabularies_and_end_tokens(tmp_path: Path) -> None:
    """More than 65,500 ids need four bytes each; ids may have gaps; the configuration names the end token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(letters)} | {"ab": 70000, "<end>": 70001}
    tokenizer = Tokenizer(models.BPE(vocab, [("a", "b")]))
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    documents = ["abba ab", "b<end>a"]
    rejected = hero(
        "data", "tokenize", "--input", tmp_path, "--tokenizer", tmp_path, "--out", tmp_path / "out"
    )
    assert rejected.returncode == 2 and "eos_token in tokenizer_config.json" in rejected.stderr
    (tmp_path / "tokenizer_config.json").write_text(
        '{"eos_token": {"content": "<end>"}, "chat_template": "x"}'
    )
    assert our_ids(tmp_path, documents, tmp_path) == [tokenizer.encode(text).ids for text in documents]
    files = json.loads((tmp_path / "out.json").read_text())
    assert (files["vocab_size"], files["eos_id"]) == (70002, 70001)
    assert files["tokenizer"] == "out.tokenizer.json"
    assert (tmp_path / "out.tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()
    assert (tmp_path / "out.tokenizer_config.json").read_bytes() == (
        tmp_path / "tokenizer_config.json"
    ).read_bytes()
    assert (tmp_path / "out-train.idx").read_bytes()[17] == 4  # i32


def saved_run(data: Path, run: Path) -> Path:
    run_hero(*training(run, data, {"train.steps": 2}))
    return checkpoint(run, 2)


def test_checkpoints_hold_the_tokenizer(trained: Callable[[str], Path], corpus: Path, tmp_path: Path) -> None:
    path = trained("qwen3")
    run_hero("data", "tokenize", "--input", corpus, "--tokenizer", path.parent, "--out", tmp_path / "data")
    saved = saved_run(tmp_path / "data", tmp_path / "run")
    assert (saved / "tokenizer.json").read_bytes() == path.read_bytes()
    loaded = AutoTokenizer.from_pretrained(saved)
    text = "def f(x):\n\treturn [x] * 2026  # 的 ÅNGström<think>"
    assert loaded.encode(text, add_special_tokens=False) == Tokenizer.from_file(str(path)).encode(text).ids
    assert loaded.eos_token == END
    assert run_hero("generate", tmp_path / "run", "--prompt", "def", "--max-tokens", 4).stdout.startswith(
        "def"
    )
    run_hero("train", "--run", tmp_path / "run", "--resume", "--train.steps=3")
    assert (checkpoint(tmp_path / "run", 3) / "tokenizer.json").read_bytes() == path.read_bytes()


def test_sentencepiece_as_tokenizer_json(
    documents: list[str], data: Path, corpus: Path, tmp_path: Path
) -> None:
    saved = saved_run(data, tmp_path / "run")
    assert (saved / "tokenizer.model").read_bytes() == Path(f"{data}.model").read_bytes()
    loaded = AutoTokenizer.from_pretrained(saved)
    rng = random.Random(3)
    runs = ["".join(rng.choice(" \n\t▁a1.") * rng.randrange(1, 40) for _ in range(12)) for _ in range(300)]
    texts = [text for text in documents[-3700:] if len(text) < 5000] + runs + documents[:5]
    ours = our_ids(Path(f"{data}.model"), texts, tmp_path)
    for text, ids in zip(texts, ours, strict=True):
        assert loaded.encode(text, add_special_tokens=False) == ids, text[:200]
        assert loaded.encode(text) == ids
        assert loaded.decode(ids) == text
    assert (loaded.eos_token, loaded.eos_token_id) == ("</s>", 1)
    assert loaded.decode([1]) == "</s>" and loaded.decode([1], skip_special_tokens=True) == ""
