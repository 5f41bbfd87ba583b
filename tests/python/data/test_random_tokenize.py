"""Random corpora: `hero data tokenize` writes the documents that a plain program finds, in its split, and
`python -m hero_moe.data tokenize` the same bytes."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from tokenizers import Tokenizer

from data_files import documents, shared_bpe, token_files, zstd
from hero_moe.data.commands import main
from program import hero
from random_cases import Case, property_tests, reproduce
from random_text import END, mixed_text
from sample_order import counter_bits

JSON_LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
WHOLE_FILES = (".txt", ".md", ".py")
BLANK = [b"", b" ", b"\t \r", b"\r"]
INVALID = [
    b"{", b"nul", b"{'text': 'a'}", b'{"text": "a",}', b'{"text": "a"} x', b'{"text": "\xff"}', b"\xc3",
    b'{"text": "\xed\xa0\x80"}', b'{"text": "\\ud800"}', b'{"text": "\\udc00\\ud800"}', b'{"text": "a\tb"}',
    b'{"text": "a", "n": NaN}', b'{"text": "a", "n": 01}', b'{"text": "\\x41"}', b'{"text": "a\x00b"}',
    b'{"text": "a", "n": -Infinity}', b'{"a": "\\ud83e", "text": "a"}', b'{"text": "a"', b"\xef\xbb\xbf{",
    b'{"text": "a", "b": [{"c": 1, "c": 1}]}', b'{"text": "a", "text": "a"}',
]  # fmt: skip
ESCAPED = {
    b'{"text": "\\\\ud800 \\uD83E\\udd86\\/"}': "\\ud800 \N{DUCK}/",
    b'\xef\xbb\xbf{"text": "\\u0000\\ufeff\\\\"}': "\0\ufeff\\",
    b' {"a\\ud83e\\uDD86": 1e2, "text":"\\u00e9"}\t': "é",
}

names = st.text("ab.-é", min_size=1, max_size=3).filter(lambda name: name.strip(".") == name)


def records() -> st.SearchStrategy[Case]:
    return st.one_of(
        st.fixed_dictionaries(
            {"seed": st.integers(0, 2**32), "ascii": st.booleans(), "order": st.booleans()}
        ),
        st.fixed_dictionaries(
            {"seed": st.integers(0, 2**32), "ascii": st.booleans(), "order": st.booleans()}
        ),
        st.fixed_dictionaries({"empty": st.booleans()}),
        st.fixed_dictionaries({"blank": st.sampled_from(range(len(BLANK)))}),
        st.fixed_dictionaries({"escaped": st.sampled_from(range(len(ESCAPED)))}),
        st.fixed_dictionaries({"invalid": st.sampled_from(range(len(INVALID)))}),
    )


def files() -> st.SearchStrategy[Case]:
    return st.fixed_dictionaries(
        {
            "folders": st.lists(names, max_size=2),
            "name": names,
            "extension": st.sampled_from(JSON_LINES * 2 + WHOLE_FILES + (".csv",)),
            "records": st.lists(records(), max_size=12),
            "line_end": st.sampled_from(["\n", "\r\n"]),
            "ends": st.booleans(),
        }
    )


def cases() -> st.SearchStrategy[Case]:
    return st.fixed_dictionaries(
        {
            "files": st.lists(files(), min_size=1, max_size=5),
            "listed": st.booleans(),
            "text_key": st.sampled_from(["text", "body", "é"]),
            "skip_invalid": st.sampled_from([True, True, False]),
            "valid_fraction": st.sampled_from([0.0, 1e-9, 0.2, 0.5, 0.95]),
            "seed": st.integers(0, 2**64 - 1),
            "workers": st.integers(1, 3),
        }
    )


def line(record: Case, key: str) -> tuple[bytes, str | None]:
    """A line and its text; None for an invalid line."""
    if "blank" in record:
        return BLANK[record["blank"]], ""
    name = json.dumps(key).encode()
    if "invalid" in record:
        return INVALID[record["invalid"]].replace(b'"text"', name), None
    if "escaped" in record:
        escaped, text = list(ESCAPED.items())[record["escaped"]]
        return escaped.replace(b'"text"', name), text
    if "empty" in record:
        return json.dumps({key: "", "other": key} if record["empty"] else {"z": [], key: ""}).encode(), ""
    rng = random.Random(record["seed"])
    text = mixed_text(rng)
    row: dict[str, Any] = {"id": rng.random(), "more": [{key: "no"}, None], key: text}
    if record["order"]:
        row = dict(reversed(row.items()))
    return json.dumps(row, ensure_ascii=record["ascii"]).encode(), text


def write(file: Case, path: Path, key: str) -> list[tuple[int, str | None]]:
    """Writes a file; the line numbers (0: none) and texts of its documents."""
    lines = [line(record, key) for record in file["records"]]
    path.parent.mkdir(parents=True, exist_ok=True)
    if not file["extension"].startswith(JSON_LINES):
        texts = [text for _, text in lines if text]
        path.write_bytes("\n".join(texts).encode())
        nul = any("\0" in text for text in texts)
        return [(0, None if nul else "\n".join(texts))]
    data = file["line_end"].encode().join(encoded for encoded, _ in lines)
    if file["ends"] and lines:
        data += file["line_end"].encode()
    ending = file["extension"]
    path.write_bytes(
        gzip.compress(data) if ending.endswith("gz") else zstd(data) if ending.endswith("zst") else data
    )
    return [
        (n, text) for n, (_, text) in enumerate(lines, 1) if text != "" or "empty" in file["records"][n - 1]
    ]


def split(count: int, fraction: float, seed: int) -> dict[str, list[int]]:
    """The numbers of the documents of each half, in order. The first is a training document; until one is
    below the fraction, that with the smallest hash waits for the end, to be the only validation document."""
    halves: dict[str, list[int]] = {"train": [], "valid": []}
    waiting: tuple[float, int] | None = None
    for n in range(count):
        own = (counter_bits(seed, n) >> 11) * 2.0**-53
        if n == 0 or fraction == 0:
            halves["train"].append(n)
        elif own < fraction or (not halves["valid"] and (waiting is None or own < waiting[0])):
            if own < fraction:
                halves["valid"].append(n)
            if waiting:
                halves["train"].append(waiting[1])
            waiting = None if own < fraction else (own, n)
        else:
            halves["train"].append(n)
    if waiting:
        halves["valid"].append(waiting[1])
    return halves


def check(case: Case, folder: Path) -> None:
    found: dict[Path, list[tuple[int, str | None]]] = {}
    for file in case["files"]:
        path = folder.joinpath("in", *file["folders"], file["name"] + file["extension"])
        if any(parent in found for parent in path.parents) or path.is_dir():
            continue
        found[path] = write(file, path, case["text_key"])
    readable = {path: texts for path, texts in found.items() if not path.name.endswith(".csv")}
    listed = [path for path in readable if path.stat().st_size] if case["listed"] else []
    order = listed or sorted(readable, key=lambda path: path.relative_to(folder / "in").as_posix().encode())
    words = [
        "--input", *map(str, listed or [folder / "in"]), "--tokenizer", str(shared_bpe()), "--text-key",
        case["text_key"], "--seed", str(case["seed"]), "--valid-fraction", str(case["valid_fraction"]),
        "--workers", str(case["workers"]), *(["--skip-invalid"] if case["skip_invalid"] else []),
    ]  # fmt: skip
    done = hero("data", "tokenize", *words, "--out", folder / "hero")
    texts = [(path, n, text) for path in order for n, text in readable[path]]
    invalid = [(path, n) for path, n, text in texts if text is None]
    usable = [text for _, _, text in texts if text]
    if (invalid and not case["skip_invalid"]) or not usable:
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
        if invalid and not case["skip_invalid"]:
            path, n = invalid[0]
            place = f"{path}: " + (f"line {n}" if n else "byte ")
            assert re.search(re.escape(place) + r"\b", done.stderr), done.stderr
        assert not list(folder.glob("hero*-train.*")), done.stderr
        return
    assert done.returncode == 0, done.stderr
    plain = Tokenizer.from_file(str(shared_bpe() / "tokenizer.json"))
    end = plain.token_to_id(END)
    ids = [[*plain.encode(text, add_special_tokens=False).ids, end] for text in usable]
    sidecar = json.loads((folder / "hero.json").read_text())
    for half, numbers in split(len(ids), case["valid_fraction"], case["seed"]).items():
        if not numbers:
            assert not (folder / f"hero-{half}.bin").exists()
            continue
        assert documents(folder / f"hero-{half}") == [ids[n] for n in numbers], half
        counts = {
            "documents": len(numbers),
            "tokens": sum(len(ids[n]) for n in numbers),
            "bytes": sum(len(usable[n].encode()) for n in numbers),
        }
        assert sidecar["splits"][half] == counts
    for count, what in (
        (len(invalid), "invalid UTF-8 or JSON"),
        (sum(t == "" for _, _, t in texts), "no text"),
    ):
        assert (f"skipped {count} documents: {what}\n" in done.stderr) == bool(count), done.stderr
    if all(path.name.endswith(JSON_LINES) and path.stat().st_size for path in order):
        assert main(["tokenize", *words, "--split", "all", "--out", str(folder / "python")]) == 0
        assert token_files(folder / "python") == token_files(folder / "hero")


test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    reproduce(check)
