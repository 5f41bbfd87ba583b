"""hero_moe.data: every format and folder gives the same records, read in batches and resumed anywhere."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_files import json_lines, some_texts, write_rows, zstd
from hero_moe.data import DataError, RecordFormat, find_sources, read_batches, readers
from hero_moe.data.readers import RawBatch, arrow_rows

ROWS = [{"id": i, "text": text, "meta": {"body": text[:9], "n": i}} for i, text in enumerate(some_texts(203))]
TEXTS = [row["text"] for row in ROWS]


def rows(batch: RawBatch) -> list[dict[str, Any]]:
    if batch.format == "arrow":
        return arrow_rows(batch.payload) if batch.payload else []
    return [json.loads(line) for line in batch.payload.split(b"\n") if line.strip()]


def texts(path: Path, **more: Any) -> list[str]:
    batches = read_batches(find_sources([path]), RecordFormat(text_key="text"), rows=17, size=300, **more)
    return [row["text"] for batch in batches for row in rows(batch)]


NAMES = [
    "a.parquet", "a.arrow", "stream.arrow", "a.jsonl", "a.json", "a.jsonl.gz", "a.jsonl.zst", "a.jsonl.zstd"
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_format_resumes_from_any_place(tmp_path: Path, name: str) -> None:
    path = write_rows(tmp_path / name, ROWS, stream=name.startswith("stream"))
    assert texts(path) == TEXTS
    sources = find_sources([path])
    batches = list(read_batches(sources, RecordFormat(text_key="text"), rows=17, size=300))
    assert batches[-1].payload == b"" and len(batches) > 10
    assert batches[-1].consumed == path.stat().st_size
    assert all(a.consumed <= b.consumed for a, b in zip(batches, batches[1:]))
    for number, batch in enumerate(batches[:-1]):
        seen = sum(len(rows(b)) for b in batches[: number + 1])
        assert batch.end.record == seen
        # resume with a different batch size
        rest = read_batches(sources, RecordFormat(text_key="text"), place=batch.end, rows=11, size=1000)
        assert [row["text"] for b in rest for row in rows(b)] == TEXTS[seen:]


def test_reads_only_selected_columns(tmp_path: Path) -> None:
    for name in ("a.parquet", "a.arrow"):
        path = write_rows(tmp_path / name, ROWS)
        (first, *_) = read_batches(find_sources([path]), RecordFormat(text_key="text"))
        assert set(rows(first)[0]) == {"text"}
    (first, *_) = read_batches(find_sources([tmp_path / "a.parquet"]), RecordFormat(text_key="meta.body"))
    assert rows(first)[0] == {"meta": {"body": TEXTS[0][:9]}}


def test_row_groups_are_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 200 row groups, read lazily: only the requested groups are read."""
    path = tmp_path / "many.parquet"
    with pq.ParquetWriter(path, pa.schema([("text", pa.string())])) as out:
        for group in range(200):
            out.write_batch(pa.record_batch({"text": [f"{group}-{i}" for i in range(10)]}))
    asked: list[int] = []

    class Watched(pq.ParquetFile):
        def iter_batches(self, *words: Any, row_groups: list[int], **more: Any) -> Any:
            assert len(row_groups) == 1
            asked.extend(row_groups)
            return super().iter_batches(*words, row_groups=row_groups, **more)

        def read(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("the whole file was read")

    monkeypatch.setattr(readers.pq, "ParquetFile", Watched)
    stream = read_batches(find_sources([path]), RecordFormat(text_key="text"), rows=4)
    for taken in range(1, 31):  # three batches per row group: 4, 4 and 2 rows
        batch = next(stream)
        assert len(rows(batch)) <= 4
        assert asked == list(range((taken + 2) // 3))


def test_lines_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(json_lines([{"text": "x" * 100_000}] * 100)))
    taken: list[int] = []
    inner = readers._line_blocks

    def watched(stream: Any, *words: Any) -> Any:
        class Stream:
            def read(self, size: int) -> bytes:
                taken.append(size)
                return stream.read(size)

        return inner(Stream(), *words)

    monkeypatch.setattr(readers, "_line_blocks", watched)
    stream = read_batches(find_sources([path]), RecordFormat(text_key="text"), size=250_000)
    for number in range(1, 11):
        assert len(next(stream).payload) < 350_000
        assert taken == [250_000] * number


def test_a_line_longer_than_a_block_and_no_newline_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(json_lines([{"text": "x" * 5000}, {"text": "y"}]).rstrip(b"\n"))
    assert texts(path) == ["x" * 5000, "y"]


def test_numbered_parts_of_one_file(tmp_path: Path) -> None:
    data = gzip.compress(json_lines(ROWS))
    cut = len(data) // 3
    for number, part in enumerate((data[:cut], data[cut : 2 * cut], data[2 * cut :]), 1):
        (tmp_path / f"zh.jsonl.gz.part{number:02d}").write_bytes(part)
    sources = find_sources([tmp_path])
    assert len(sources) == 1 and sources[0].size == len(data)
    assert texts(tmp_path) == TEXTS
    given = sorted(tmp_path.glob("zh.jsonl.gz.part*"))  # as a shell expands the pattern
    assert [source.parts for source in find_sources(given)] == [tuple(map(str, given))]
    (tmp_path / "zh.jsonl.gz.part02").unlink()
    with pytest.raises(DataError, match=r"zh\.jsonl\.gz: found parts 1, 3, expected consecutive"):
        find_sources([tmp_path])


def test_hub_folder_with_configurations(tmp_path: Path) -> None:
    for name in (
        "big/train-00000-of-00002",
        "big/train-00001-of-00002",
        "big/test-00000-of-00001",
        "small/x-1",
    ):
        write_rows(tmp_path / f"{name}.parquet", ROWS[:3])
    (tmp_path / "README.md").write_text(
        "---\nlicense: odc-by\nconfigs:\n- config_name: big\n  data_files:\n"
        "  - split: train\n    path: big/train-*\n"
        "  - split: test\n    path: [big/test-*]\n- config_name: small\n"
        "  data_files: small/*.parquet\n---\n# Card\n"
    )

    def names(**more: Any) -> list[str]:
        return [str(Path(source.path).relative_to(tmp_path)) for source in find_sources([tmp_path], **more)]

    assert names(config="big") == ["big/train-00000-of-00002.parquet", "big/train-00001-of-00002.parquet"]
    assert names(config="big", split="test") == ["big/test-00000-of-00001.parquet"]
    assert len(names(config="big", split="all")) == 3
    assert names(config="small") == ["small/x-1.parquet"]
    with pytest.raises(DataError, match=r'README.md: found configurations "big", "small", expected --config'):
        names()
    with pytest.raises(DataError, match=r'no configuration "huge", found "big", "small"'):
        names(config="huge")
    with pytest.raises(DataError, match=r'has no split "dev", found "train", "test"'):
        names(config="big", split="dev")
    (tmp_path / "README.md").unlink()  # then a configuration is a folder
    assert names(config="small") == ["small/x-1.parquet"]
    assert len(names(config="big")) == 2


def test_splits_by_file_names(tmp_path: Path) -> None:
    for name in ("data/train_sft-00000-of-00001", "data/test_sft-00000-of-00001"):
        write_rows(tmp_path / f"{name}-0f1e.parquet", ROWS[:3])
    (source,) = find_sources([tmp_path], split="train_sft")
    assert source.path.endswith("train_sft-00000-of-00001-0f1e.parquet")
    with pytest.raises(DataError, match=r'no files of split "train", found "test_sft", "train_sft"'):
        find_sources([tmp_path])
    other = tmp_path / "other"
    for name in ("train/b.jsonl", "train/a.jsonl", "validation/a.jsonl"):
        write_rows(other / name, ROWS[:3])
    assert [Path(s.path).name for s in find_sources([other])] == ["a.jsonl", "b.jsonl"]
    assert len(find_sources([other], split="validation")) == 1
    assert len(find_sources([other], split="all")) == 3
    assert [Path(s.path).name for s in find_sources([str(other / "train" / "*.jsonl")])] == [
        "a.jsonl",
        "b.jsonl",
    ]


def test_save_to_disk_folders(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    saved = datasets.Dataset.from_list(ROWS)
    saved.save_to_disk(str(tmp_path / "one"), num_shards=3)
    assert len(find_sources([tmp_path / "one"])) == 3
    assert texts(tmp_path / "one") == TEXTS
    datasets.DatasetDict({"train": saved, "test": saved.select(range(5))}).save_to_disk(str(tmp_path / "two"))
    assert texts(tmp_path / "two") == TEXTS
    assert len(find_sources([tmp_path / "two"], split="all")) == 2
    with pytest.raises(DataError, match=r'no split "dev", found "train", "test"'):
        find_sources([tmp_path / "two"], split="dev")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl.gz", gzip.compress(json_lines(ROWS))[:-9], "a.jsonl.gz: corrupt .* Truncated"),
        ("a.jsonl.zst", zstd(json_lines(ROWS))[:-3], "a.jsonl.zst: corrupt .* Truncated"),
        ("b.jsonl.gz", b"not compressed", "b.jsonl.gz: corrupt or unreadable after record 0"),
        ("a.parquet", b"PAR1 but no more than that", "a.parquet: corrupt or unreadable"),
        ("a.arrow", b"ARROW1 but no more than that", "a.arrow: corrupt or unreadable"),
        ("b.arrow", b"no Arrow at all", "b.arrow: corrupt or unreadable"),
        (
            "a.json",
            b'[{"text": "x"}]',
            "a.json: line 1, byte 0: found a JSON array, expected one object per line",
        ),
        ("e.jsonl", b"", "e.jsonl: empty file"),
        (
            "e.txt",
            b"text",
            r'e.txt: unknown extension ".txt", expected .parquet.*hero data tokenize reads .txt',
        ),
        ("e.bin", b"text", 'e.bin: unknown extension ".bin"'),
    ],
)
def test_rejects_invalid_files(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message):
        texts(tmp_path / name)


def test_only_metadata_is_skipped_in_folders(tmp_path: Path) -> None:
    """By whole names: other names that end alike are data."""
    data = ["a.jsonl", "solid-state.json", "my_config.json", "b.tokenizer.json.jsonl"]
    metadata = ["state.json", "config.json", "tokenizer.json", "p.tokenizer.json", "p.tokenizer_config.json"]
    for name in [*data, *metadata]:
        (tmp_path / name).write_bytes(json_lines(ROWS[:1]))
    assert sorted(Path(s.parts[0]).name for s in find_sources([tmp_path])) == sorted(data)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("state.json", '{"_data_files": [{"x": 1}]}', "state.json: _data_files: expected a list of"),
        ("state.json", '{"_data_files": [3]}', "state.json: _data_files: expected a list of"),
        ("dataset_dict.json", '{"splits": [3]}', 'dataset_dict.json: no list "splits"'),
        ("README.md", "---\nconfigs: 3\n---\n", "found no data file"),
    ],
)
def test_rejects_damaged_metadata(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        find_sources([tmp_path], split="all")


def test_rejects_invalid_paths(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: no such file or folder"):
        find_sources([tmp_path / "nowhere"])
    with pytest.raises(DataError, match=r"\*\.parquet: no file matches"):
        find_sources([str(tmp_path / "*.parquet")])
    with pytest.raises(DataError, match=r"found no data file"):
        find_sources([tmp_path])
