"""Finds the files to read from paths, globs and dataset folders.

A folder may be the output of `datasets.save_to_disk` (`state.json`, `dataset_dict.json`), a copy of a Hugging
Face Hub dataset (`README.md` with `configs:` in its YAML front matter, files such as
`data/train-00000-of-00012.parquet`, a folder for each configuration), or any folder of data files, which are
read in path order."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hero_moe.data.errors import DataError
from hero_moe.json_text import parse_json

FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
SUPPORTED_FORMATS = ".parquet, .arrow, .jsonl or .json (the last two optionally with .gz or .zst)"
# JSON files of datasets, tokenizers and models that hold no records.
METADATA_FILES = (
    *("state.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json"),
)
# Names that denote a split if they are a whole word of a path.
SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "dev", "val"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
PART = re.compile(r"^(?P<name>.+)\.part(?P<number>\d+)$")
SHARD = re.compile(r"(?:^|/)data/(?P<split>[\w.]+)-\d{5}-of-\d{5}[^/]*$")


@dataclass(frozen=True)
class Source:
    """One stream of records: a file, or the numbered parts of a split compressed file.

    `format` is "parquet", "arrow" or "json"; `compression` None, "gzip" or "zstd".
    """

    parts: tuple[str, ...]
    sizes: tuple[int, ...]
    format: str
    compression: str | None

    @property
    def path(self) -> str:
        return self.parts[0]

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(self.sizes)


def find_sources(
    inputs: Iterable[str | Path], *, config: str | None = None, split: str = "train"
) -> list[Source]:
    """The sources behind paths, globs and folders, in a fixed order.

    `config` selects a configuration of a dataset, `split` the split to read from folders with splits ("all":
    every file). Raises `DataError` for missing, empty or unsupported files."""
    found: list[Source] = []
    parts: list[str] = []  # of one file, one by one, as a shell expands a glob
    for given in map(str, inputs):
        if PART.match(given) and os.path.isfile(given):
            parts.append(given)
            continue
        found += _group(parts)
        parts = []
        if os.path.isdir(given):
            found += _group(_in_folder(given, config, split))
        elif os.path.exists(given):
            found += _group([given])
        elif glob.has_magic(given):
            files = [path for path in _matches(given) if os.path.isfile(path)]
            if not files:
                raise DataError(f"{given}: no file matches")
            found += _group(files)
        else:
            raise DataError(f"{given}: no such file or folder")
    found += _group(parts)
    if not found:
        raise DataError("no input, expected at least one file or folder")
    return found


def file_format(name: str) -> tuple[str, str | None] | None:
    """(format, compression) by file extension; None for an unsupported file."""
    part = PART.match(name)
    stem, extension = os.path.splitext(part["name"] if part else name)
    compression = COMPRESSIONS.get(extension.lower())
    if part and not compression:
        return None
    if compression:
        extension = os.path.splitext(stem)[1]
    kind = FORMATS.get(extension.lower())
    if kind is None or (compression and kind != "json"):
        return None
    return kind, compression


def _matches(pattern: str) -> list[str]:
    return sorted(glob.glob(pattern, recursive=True))


def _group(paths: list[str]) -> list[Source]:
    """One source for each file, or for all numbered parts of a split compressed file."""
    parts: dict[str, list[tuple[int, str]]] = {}
    for path in paths:
        part = PART.match(path)
        name, number = (part["name"], int(part["number"])) if part else (path, 0)
        parts.setdefault(name, []).append((number, path))
    sources = []
    for name, members in parts.items():
        known = file_format(os.path.basename(members[0][1]))
        if known is None:
            extension = os.path.splitext(name)[1]
            hint = (
                "; hero data tokenize reads .txt, .md and .py" if extension in (".txt", ".md", ".py") else ""
            )
            raise DataError(
                f'{members[0][1]}: unknown extension "{extension}", expected {SUPPORTED_FORMATS}{hint}'
            )
        members.sort()
        first = members[0][0]
        if [number for number, _ in members] != list(range(first, first + len(members))) or first > 1:
            raise DataError(
                f"{name}: found parts {', '.join(str(n) for n, _ in members)}, expected consecutive parts "
                "from the first"
            )
        sizes = tuple(os.path.getsize(path) for _, path in members)
        if 0 in sizes:
            raise DataError(f"{members[sizes.index(0)][1]}: empty file, expected records")
        sources.append(Source(tuple(path for _, path in members), sizes, *known))
    return sources


def _in_folder(folder: str, config: str | None, split: str) -> list[str]:
    dictionary = os.path.join(folder, "dataset_dict.json")
    if os.path.isfile(dictionary):
        splits = _json(dictionary).get("splits")
        if not isinstance(splits, list) or not all(isinstance(name, str) for name in splits):
            raise DataError(f'{dictionary}: no list "splits", expected the output of save_to_disk')
        wanted = splits if split == "all" else [split]
        if missing := [name for name in wanted if name not in splits]:
            raise DataError(
                f'{folder}: no split "{missing[0]}", found {_quoted(splits)} (--split selects another)'
            )
        return [path for name in wanted for path in _in_folder(os.path.join(folder, name), None, "all")]
    state = os.path.join(folder, "state.json")
    if os.path.isfile(state) and isinstance(entries := _json(state).get("_data_files"), list):
        names = [str(e["filename"]) for e in entries if isinstance(e, dict) and "filename" in e]
        if len(names) < len(entries):
            raise DataError(f'{state}: _data_files: expected a list of {{"filename"}}, as from save_to_disk')
        return _matching_files(folder, names, state)
    configurations = _configurations(os.path.join(folder, "README.md"))
    if configurations:
        return _configured_files(folder, configurations, config, split)
    if config is not None:
        if not os.path.isdir(os.path.join(folder, config)):
            raise DataError(f'{folder}: no configuration "{config}" in README.md and no folder of that name')
        return _listed_files(os.path.join(folder, config), split)
    return _listed_files(folder, split)


def _listed_files(folder: str, split: str) -> list[str]:
    """Data files below a folder, of one split if their names contain split names."""
    inside = [
        os.path.relpath(os.path.join(base, name), folder)
        for base, folders, names in os.walk(folder)
        for name in names
        if file_format(name) and not name.startswith(("cache-", ".")) and not _is_metadata(name)
    ]
    hidden = [path for path in inside if any(part.startswith(".") for part in path.split(os.sep))]
    inside = sorted(
        path
        for path in inside
        if path not in hidden and not _is_token_file_metadata(os.path.join(folder, path))
    )
    if not inside:
        raise DataError(f"{folder}: found no data file, expected {SUPPORTED_FORMATS}")
    splits = {path: split_of(path) for path in inside}
    known = sorted({name for name in splits.values() if name})
    if split != "all" and known:
        if split not in known:
            raise DataError(
                f'{folder}: no files of split "{split}", found {_quoted(known)} (--split selects another)'
            )
        inside = [path for path in inside if splits[path] == split]
    return [os.path.join(folder, path) for path in inside]


def _is_metadata(name: str) -> bool:
    """Whether a file name is one of METADATA_FILES, or a tokenizer's of token files, such as
    PREFIX.tokenizer.json."""
    return name in METADATA_FILES or any(
        name.endswith(f".{file}") for file in METADATA_FILES if file.startswith("tokenizer")
    )


def _is_token_file_metadata(path: str) -> bool:
    """Whether a file is PREFIX.json or PREFIX.position.json of token files."""
    if not path.endswith(".json"):
        return False
    with open(path, "rb") as file:
        return b'"format": "hero ' in file.read(64)


def split_of(path: str) -> str | None:
    """The split encoded in a path inside a dataset folder: `data/NAME-00000-of-00012.parquet`, or a common
    name (train, validation, test, ...) as a word of the file or folder name; the file name takes
    precedence."""
    shard = SHARD.search(path.replace(os.sep, "/"))
    if shard:
        return SPLIT_WORDS.get(shard["split"], shard["split"])
    for component in reversed(path.split(os.sep)):
        for word in re.split(r"[-._ 0-9]+", component.lower()):
            if word in SPLIT_WORDS:
                return SPLIT_WORDS[word]
    return None


def _configurations(readme: str) -> list[dict[str, Any]]:
    """The `configs:` of a dataset card that list files."""
    if not os.path.isfile(readme):
        return []
    with open(readme, encoding="utf-8", errors="replace") as file:
        if file.readline().strip() != "---":
            return []
        head = []
        for line in file:
            if line.strip() == "---":
                break
            head.append(line)
    try:
        card = yaml.safe_load("".join(head))
    except yaml.YAMLError as error:
        raise DataError(f"{readme}: invalid YAML front matter ({str(error).splitlines()[0]})") from error
    entries = card.get("configs") if isinstance(card, dict) else None
    return [
        entry
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict) and ("data_files" in entry or "data_dir" in entry)
    ]


def _configured_files(
    folder: str, entries: list[dict[str, Any]], config: str | None, split: str
) -> list[str]:
    readme = os.path.join(folder, "README.md")
    names = [str(entry.get("config_name", "default")) for entry in entries]
    if config is None:
        defaults = [name for name, entry in zip(names, entries, strict=True) if entry.get("default") is True]
        defaults += ["default"] if "default" in names else names if len(names) == 1 else []
        config = defaults[0] if defaults else None
        if config is None:
            raise DataError(
                f"{readme}: found configurations {_quoted(names)}, expected --config to choose one"
            )
    if config not in names:
        raise DataError(f'{readme}: no configuration "{config}", found {_quoted(names)}')
    entry = entries[names.index(config)]
    base = os.path.join(folder, str(entry.get("data_dir", "")))
    if "data_files" not in entry:
        return _listed_files(base, split)
    patterns = _patterns(entry["data_files"], readme)
    if split != "all" and split not in patterns:
        raise DataError(
            f'{readme}: configuration "{config}" has no split "{split}", found {_quoted(patterns)} '
            "(--split selects another)"
        )
    wanted = [p for name, group in patterns.items() if split in ("all", name) for p in group]
    return _matching_files(base, wanted, readme)


def _patterns(data_files: Any, readme: str) -> dict[str, list[str]]:
    """Split -> globs; `data_files` may be a glob, globs, {split: globs} or [{split, path: globs}]."""

    def globs(value: Any) -> list[str]:
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(v, str) for v in values):
            raise DataError(f"{readme}: data_files: found {value!r}, expected paths")
        return values

    if isinstance(data_files, dict):
        return {str(name): globs(value) for name, value in data_files.items()}
    if isinstance(data_files, list) and data_files and all(isinstance(entry, dict) for entry in data_files):
        return {str(entry.get("split", "train")): globs(entry.get("path")) for entry in data_files}
    return {"train": globs(data_files)}


def _matching_files(folder: str, patterns: list[str], where: str) -> list[str]:
    files = []
    for pattern in patterns:
        matched = [p for p in _matches(os.path.join(glob.escape(folder), pattern)) if os.path.isfile(p)]
        if not matched:
            raise DataError(f'{where}: "{pattern}" matches no file in {folder}')
        files += [path for path in matched if path not in files]
    return files


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            value = parse_json(file.read())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: found {type(value).__name__}, expected an object")
    return value
