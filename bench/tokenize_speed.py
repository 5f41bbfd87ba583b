"""MB of text a second: `hero data tokenize`, files to token files, against transformers' fast tokenizer on texts in memory.

Both use the same tokenizer.json (byte-level BPE with Qwen's splitting, trained here) and all cores. Writes
docs/results/tokenize-speed.md. Rounds alternate the contestants.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path

from machine import machine

ROOT = Path(__file__).resolve().parent.parent
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
END = "<|endoftext|>"
BATCH = 256  # texts of one call


def texts_of(inputs: list[Path]) -> list[str]:
    files = [f for path in inputs for f in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    texts = (file.read_text("utf-8", errors="replace") for file in files)
    return [text for text in texts if text]


def write_tokenizer(folder: Path, texts: list[str], vocabulary: int) -> None:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts[::4], trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(folder)


def run_hero(folder: Path, lines: Path) -> float:
    """Seconds of the whole command."""
    command = [ROOT / "build/hero", "data", "tokenize", "--input", lines, "--tokenizer", folder]
    begin = time.perf_counter()
    subprocess.run(
        [str(word) for word in [*command, "--out", folder / "out"]],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - begin


def run_transformers(folder: Path, texts: list[str]) -> float:
    """Seconds of the tokenizer's calls alone."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    begin = time.perf_counter()
    for i in range(0, len(texts), BATCH):
        tokenizer(texts[i : i + BATCH], return_attention_mask=False)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", type=Path, nargs="+", help="files, or folders of .py files")
    parser.add_argument("--vocab-size", type=int, default=32768)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/tokenize-speed.md")
    args = parser.parse_args()
    packages = Path(sysconfig.get_paths()["purelib"])
    texts = texts_of(args.input or [packages / "numpy", packages / "sympy"])
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    names = ("hero data tokenize", "transformers, fast tokenizer")
    rates: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "tokenizer"
        write_tokenizer(folder, texts, args.vocab_size)
        lines = Path(work) / "texts.jsonl"
        with lines.open("w", encoding="utf-8") as out:
            out.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        for number in range(args.rounds):
            for name, seconds in zip(names, (run_hero(folder, lines), run_transformers(folder, texts))):
                rates[name].append(megabytes / seconds)
                print(f"round {number + 1}/{args.rounds}: {name}: {rates[name][-1]:.2f} MB/s", flush=True)
    ratios = [a / b for a, b in zip(*rates.values())]
    rows = [
        f"| {name} | {statistics.median(values):.2f} | {min(values):.2f} to {max(values):.2f} |"
        for name, values in rates.items()
    ]
    text = "\n".join(
        [
            "# Tokenizing speed",
            "",
            f"`.venv/bin/python bench/tokenize_speed.py --rounds {args.rounds}` on {machine()}: {len(texts):,} texts, "
            f"{megabytes:.1f} MB, {args.vocab_size:,} tokens, byte-level BPE with Qwen's splitting. The program's time is "
            "that of the whole command, reading and writing included.",
            "",
            "| | MB/s, median | range over rounds |",
            "|---|---|---|",
            *rows,
            "",
            f"Ratio within rounds: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}).",
            "",
        ]
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text)
    print("\n" + text)


if __name__ == "__main__":
    main()
