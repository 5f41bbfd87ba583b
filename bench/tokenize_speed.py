"""Tokenization speed in MB/s: `hero data tokenize`, file to file, against `tokenizers` and transformers' fast
tokenizer in memory.

All use the same tokenizer.json (byte-level BPE with Qwen's splitting, trained here) and all cores; `tokenizers`
also a single thread. Writes docs/results/PROCESSOR/tokenize-speed.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path

from rounds import (
    PROGRAM,
    Target,
    cpu_page,
    own_command,
    parser,
    ratios_per_round,
    round_robin,
    spread,
    table,
    write_page,
)

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
END = "<|endoftext|>"
BATCH = 256  # texts per call


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
    command = [PROGRAM, "data", "tokenize", "--input", lines, "--tokenizer", folder]
    begin = time.perf_counter()
    subprocess.run(
        [str(word) for word in [*command, "--out", folder / "out", "--overwrite"]],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - begin


def run_transformers(folder: Path, texts: list[str]) -> float:
    """Seconds of the tokenizer calls only."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    begin = time.perf_counter()
    for i in range(0, len(texts), BATCH):
        tokenizer(texts[i : i + BATCH], return_attention_mask=False)
    return time.perf_counter() - begin


def run_tokenizers(folder: Path, texts: list[str], parallel: bool) -> float:
    """Seconds of the calls only, which compute no offsets."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    os.environ["TOKENIZERS_PARALLELISM"] = str(parallel).lower()  # read by every call
    begin = time.perf_counter()
    for i in range(0, len(texts), BATCH):
        tokenizer.encode_batch_fast(texts[i : i + BATCH])
    return time.perf_counter() - begin


def main() -> None:
    args_parser = parser(__doc__, cpu_page("tokenize-speed.md"))
    args_parser.add_argument("--input", type=Path, nargs="+", help="files, or folders of .py files")
    args_parser.add_argument("--vocab-size", type=int, default=32768)
    args = args_parser.parse_args()
    packages = Path(sysconfig.get_paths()["purelib"])
    inputs = args.input or [packages / "numpy", packages / "sympy"]
    if args.quick:
        args.rounds, args.vocab_size, inputs = 1, 1024, [packages / "numpy" / "lib"]
    texts = texts_of(inputs)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    ours, theirs = "hero data tokenize", "transformers, fast tokenizer"
    parallel, single = "tokenizers, all cores", "tokenizers, one thread"
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "tokenizer"
        write_tokenizer(folder, texts, args.vocab_size)
        lines = Path(work) / "texts.jsonl"
        with lines.open("w", encoding="utf-8") as out:
            out.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        candidates = {
            ours: lambda: megabytes / run_hero(folder, lines),
            theirs: lambda: megabytes / run_transformers(folder, texts),
            parallel: lambda: megabytes / run_tokenizers(folder, texts, True),
            single: lambda: megabytes / run_tokenizers(folder, texts, False),
        }
        rates = round_robin(candidates, args.rounds, "MB/s", places=2)
    ratios = {name: ratios_per_round(rates[ours], rates[name]) for name in (theirs, parallel, single)}
    write_page(
        args,
        "Tokenization speed",
        [
            f"{len(texts):,} texts, {megabytes:.1f} MB, {args.vocab_size:,} tokens, byte-level BPE with Qwen's splitting. "
            "The program's time is that of the whole command, including reading and writing.",
            "",
            *table(
                ["", "MB/s, median (range over rounds)", "hero data tokenize relative to it"],
                [
                    [name, spread(v), spread(ratios[name]) if name in ratios else ""]
                    for name, v in rates.items()
                ],
            ),
        ],
        [
            Target(f"tokenization, MB/s vs. {name}", bound, ratios[name], own_command())
            for name, bound in ((theirs, 1.0), (parallel, 1.0), (single, 10.0))
        ],
    )


if __name__ == "__main__":
    main()
