"""hero_moe.data: the text of records, skipped records, and invalid formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from data_files import documents, options, train_sentencepiece, write_rows
from hero_moe.data import BUILT_IN, DataError, RecordFormat, TokenizerFile, load_tokenizer, tokenize
from hero_moe.data.encoders import make_encoder
from hero_moe.data.records import UnusableRecord
from program import hero

PLAIN = {"chat_template": BUILT_IN["plain"]}


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> TokenizerFile:
    return load_tokenizer(str(train_sentencepiece(tmp_path_factory.mktemp("pieces"))))


@pytest.mark.parametrize(
    ("line", "valid"),
    [
        ('{"text": "a", "n": 1e308, "m": ' + "9" * 308 + "}", True),
        ('{"text": "a", "n": 1e400}', False),
        ('{"text": "a", "n": -1E+309}', False),
        ('{"text": "a", "n": 1' + "0" * 250 + "e99}", False),
        ('{"text": "a", "n": ' + "9" * 400 + "}", False),
        ('{"text": "a", "n": ' + "[" * 99 + "]" * 99 + "}", True),
        ('{"text": "a", "n": ' + "[" * 100 + "]" * 100 + "}", False),
        ('{"text": "a", "n": ' + "[" * 400 + "]" * 400 + "}", False),
        ('{"text": "a", "n": [' + "{}, " * 300 + "{}]}", True),
    ],
)
def test_limits_of_json_are_those_of_the_program(
    line: str, valid: bool, pieces: TokenizerFile, tmp_path: Path
) -> None:
    """Numbers beyond the doubles and more than 100 levels are invalid lines."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(line + '\n{"text": "b"}\n')
    (tmp_path / "pieces.model").write_bytes(pieces.data)
    words = ["--input", corpus, "--tokenizer", tmp_path / "pieces.model", "--out", tmp_path / "out"]
    assert hero("data", "tokenize", *words, "--valid-fraction", 0).returncode == (0 if valid else 2)
    given = options(pieces, [corpus], tmp_path / "python", valid_fraction=0.0)
    if valid:
        assert tokenize(given).records == 2
    else:
        with pytest.raises(DataError, match=r"corpus.jsonl: line 1, byte 0: .*(doubles|100 levels)"):
            tokenize(given)


@pytest.mark.parametrize(
    ("reading", "record", "text"),
    [
        ({"text_key": "body"}, {"body": "a"}, "a"),
        ({"text_key": "meta.inner.body"}, {"meta": {"inner": {"body": "a"}}}, "a"),
        ({"text_key": "a.b"}, {"a.b": "dotted", "a": {"b": "inside"}}, "dotted"),
        ({"template": "{q}\n\n{m.a} {{x}}"}, {"q": "1", "m": {"a": "2"}}, "1\n\n2 {x}"),
        ({"template": "{q}{a}"}, {"q": "", "a": "2"}, "2"),
        (
            {"messages": "m", **PLAIN},
            {
                "m": [
                    {"role": "user", "content": " hi "},
                    {"role": "assistant", "content": "yes", "name": None},
                ]
            },
            "User: hi\n\nAssistant: yes",
        ),
        (
            {"messages": "m", **PLAIN},
            {"m": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes"}]},
            "User: hi\n\nAssistant: yes",
        ),
        ({"prompt": "p", "response": "r", **PLAIN}, {"p": "hi", "r": "yes"}, "User: hi\n\nAssistant: yes"),
    ],
)
def test_records_as_text(reading: dict[str, Any], record: dict[str, Any], text: str) -> None:
    assert RecordFormat(**reading).text(record) == text


@pytest.mark.parametrize(
    ("reading", "record", "kind", "message"),
    [
        ({"text_key": "text"}, {"body": "a"}, "missing", 'no field "text", found "body"'),
        ({"text_key": "text"}, {"text": None}, "missing", 'field "text" is null'),
        ({"text_key": "text.a"}, {"text": "a"}, "missing", 'no field "text.a"'),
        ({"text_key": "text"}, {"text": 3}, "wrong", 'field "text" is a number, expected a string'),
        ({"text_key": "text"}, {"text": "\ud800"}, "wrong", "unpaired surrogate"),
        ({"text_key": "text"}, {"text": ""}, "empty", "empty"),
        ({"template": "{a}{b}"}, {"a": "x"}, "missing", 'no field "b"'),
        ({"template": "{a}-{b}"}, {"a": "", "b": ""}, "empty", "all fields are empty"),
        (
            {"messages": "m", **PLAIN},
            {"m": "x"},
            "wrong",
            'field "m" is a string, expected a list of messages',
        ),
        ({"messages": "m", **PLAIN}, {"m": []}, "empty", "no messages"),
        ({"messages": "m", **PLAIN}, {"m": [{"role": "user"}]}, "wrong", "message 0 of"),
        ({"messages": "m", **PLAIN}, {"m": ["hi"]}, "wrong", "message 0 of"),
        ({"prompt": "p", "response": "r", **PLAIN}, {"p": "hi", "r": ""}, "empty", 'field "r" is empty'),
        (
            {"messages": "m", "chat_template": BUILT_IN["deepseek"]},
            {"m": [{"role": "tool", "content": "x"}]},
            "wrong",
            "the deepseek template has no role tool",
        ),
    ],
)
def test_records_without_text(
    reading: dict[str, Any], record: dict[str, Any], kind: str, message: str
) -> None:
    with pytest.raises(UnusableRecord, match=message) as caught:
        RecordFormat(**reading).text(record)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("reading", "message"),
    [
        ({}, "found 0 ways to read records"),
        ({"text_key": "a", "template": "{b}"}, "found 2 ways to read records"),
        ({"prompt": "p", **PLAIN}, "--prompt and --response: found only one"),
        ({"template": "no field"}, "found no field"),
        ({"template": "{a"}, "--template"),
        ({"template": "{a!r}"}, "expected {field} only"),
        ({"messages": "m"}, "chat template"),
        ({"messages": "m", "chat_template": "{% for %}"}, "chat template: line 1"),
    ],
)
def test_rejects_invalid_record_formats(reading: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        RecordFormat(**reading)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
@pytest.mark.parametrize(
    ("reading", "row", "message"),
    [
        ({"text_key": "text"}, {"body": "a", "id": 1}, 'no column "text", found body, id'),
        ({"text_key": "meta.text"}, {"meta": {"body": "a"}}, 'no column "text" in "meta", found body'),
        ({"text_key": "id"}, {"id": 1}, 'column "id" is int64, expected a string'),
        (
            {"messages": "m", **PLAIN},
            {"m": [{"who": "a", "what": "b"}]},
            'column "m" is list<.*, expected a list of role',
        ),
        ({"messages": "m", **PLAIN}, {"m": "x"}, 'column "m" is string, expected a list of role and content'),
    ],
)
def test_rejects_columns_without_text(
    tmp_path: Path,
    pieces: TokenizerFile,
    name: str,
    reading: dict[str, Any],
    row: dict[str, Any],
    message: str,
) -> None:
    path = write_rows(tmp_path / name, [row])
    with pytest.raises(DataError, match=f"{name}: {message}"):
        tokenize(options(pieces, [path], tmp_path / "o", records=RecordFormat(**reading)))


def test_rejects_a_field_missing_in_all_lines(tmp_path: Path, pieces: TokenizerFile) -> None:
    good = write_rows(tmp_path / "a.jsonl", [{"text": "x"}] * 3)
    bad = write_rows(tmp_path / "b.jsonl", [{"body": "x", "id": 2}] * 500)
    message = r'b.jsonl: line 1, byte 0: no field "text", found "body", "id" \(in none of its 500 records\)'
    with pytest.raises(DataError, match=message):
        tokenize(options(pieces, [good, bad], tmp_path / "o", batch_bytes=100))


ODD = [{"text": "one"}, {"text": ""}, {"text": None}, {"id": 1}, {"text": "two"}]


def test_counts_skipped_records(tmp_path: Path, pieces: TokenizerFile) -> None:
    path = tmp_path / "a.jsonl"
    write_rows(path, [*ODD, {"text": 3}])
    path.write_bytes(path.read_bytes() + b"  \n[1]\n")
    result = tokenize(options(pieces, [path], tmp_path / "o", valid_fraction=0))
    assert result.records == 7
    assert result.skipped == {"missing": 2, "wrong": 2, "empty": 1, "invalid": 0}
    encoder = make_encoder(pieces)
    expected = [[*ids, pieces.eos_id] for ids in encoder.encode(["one", "two"], conversation=False)]
    assert documents(tmp_path / "o-train") == expected
    assert not (tmp_path / "o-valid.bin").exists()

    table = pa.Table.from_pylist(ODD)
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as out:
        out.write_table(table)
    result = tokenize(options(pieces, [tmp_path / "a.arrow"], tmp_path / "p", valid_fraction=0))
    assert (result.records, result.skipped["missing"], result.skipped["empty"]) == (5, 2, 1)
    assert documents(tmp_path / "p-train") == expected


def test_strict_rejects_records_without_text(tmp_path: Path, pieces: TokenizerFile) -> None:
    lines = write_rows(tmp_path / "a.jsonl", ODD)
    with pytest.raises(DataError, match=r"a.jsonl: line 2, byte 16: the text is empty"):
        tokenize(options(pieces, [lines], tmp_path / "o", strict=True))
    table = write_rows(tmp_path / "a.parquet", ODD, group=2)
    with pytest.raises(DataError, match=r"a.parquet: row 2: the text is empty"):
        tokenize(options(pieces, [table], tmp_path / "p", strict=True, batch_rows=1))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "a"', "byte 25: invalid JSON"),
        (b'{"text": NaN}', r"byte 13: invalid JSON \(found NaN\)"),
        (b'{"text": "a\xff"}', r"byte 24: invalid UTF-8 \(0xFF\)"),
        (b'{"text": "a\0"}', "byte 24: NUL byte"),
        (b"[" * 200_000, "invalid JSON"),
    ],
)
def test_invalid_lines(tmp_path: Path, pieces: TokenizerFile, line: bytes, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text":"x"}\n' + line + b'\n{"text": "y"}\n')
    with pytest.raises(DataError, match=f"a.jsonl: line 2, {message}" if "byte" in message else message):
        tokenize(options(pieces, [path], tmp_path / "o"))
    result = tokenize(options(pieces, [path], tmp_path / "p", skip_invalid=True))
    assert (result.records, result.skipped["invalid"]) == (3, 1)
    assert sum(counts["documents"] for counts in result.splits.values()) == 2


def test_no_text_at_all(tmp_path: Path, pieces: TokenizerFile) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"text": ""}])
    with pytest.raises(DataError, match="no text found"):
        tokenize(options(pieces, [path], tmp_path / "o"))
    assert not (tmp_path / "o.json").exists()
