"""Which files to read: paths, globs and folders as data sets come.

A folder may be what `datasets.save_to_disk` wrote (`state.json`, `dataset_dict.json`), the copy of a data set
of the Hugging Face hub (`README.md` with `configs:` in its YAML head, files such as
`data/train-00000-of-00012.parquet`, a folder for each configuration), or any folder of data files, which are
taken in the order of their paths."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hero_moe.data.errors import DataError

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
ACCEPTED = ".parquet, .arrow, .jsonl or .json, the last two also with .gz or .zst"
# What lies beside data and is none: of data sets, of tokenizers and models.
NO_DATA = (
    *("state.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json"),
)
# Names that stand for a split wherever they are a whole word of a path.
SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "dev", "val"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
PART = re.compile(r"^(?P<name>.+)\.part(?P<number>\d+)$")
SHARD = re.compile(r"(?:^|/)data/(?P<split>[\w.]+)-\d{5}-of-\d{5}[^/]*$")


@dataclass(frozen=True)
class Source:
    """One stream of records: a file, or the numbered parts that a compressed file was cut into.

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
        """Bytes on the disk."""
        return sum(self.sizes)


def find_sources(
    inputs: Iterable[str | Path], *, config: str | None = None, split: str = "train"
) -> list[Source]:
    """The sources behind paths, globs and folders, in a fixed order.

    `config` names a configuration of a data set, `split` the split to read of folders that tell their splits
    apart ("all": every file). Raises `DataError` for what is missing, empty, or of an unknown kind."""
    found: list[Source] = []
    for given in map(str, inputs):
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
    if not found:
        raise DataError("no input, expected at least one file or folder")
    return found


def file_format(name: str) -> tuple[str, str | None] | None:
    """(format, compression) by the ending of a file's name; None for a name that is not read here."""
    part = PART.match(name)
    stem, ending = os.path.splitext(part["name"] if part else name)
    compression = COMPRESSIONS.get(ending.lower())
    if part and not compression:
        return None
    if compression:
        ending = os.path.splitext(stem)[1]
    kind = FORMATS.get(ending.lower())
    if kind is None or (compression and kind != "json"):
        return None
    return kind, compression


def _matches(pattern: str) -> list[str]:
    return sorted(glob.glob(pattern, recursive=True))


def _group(paths: list[str]) -> list[Source]:
    """One source for each file, or for each run of numbered parts of one compressed file."""
    parts: dict[str, list[tuple[int, str]]] = {}
    for path in paths:
        part = PART.match(path)
        name, number = (part["name"], int(part["number"])) if part else (path, 0)
        parts.setdefault(name, []).append((number, path))
    sources = []
    for name, members in parts.items():
        known = file_format(os.path.basename(members[0][1]))
        if known is None:
            ending = os.path.splitext(name)[1]
            hint = "; hero data tokenize reads .txt, .md and .py" if ending in (".txt", ".md", ".py") else ""
            raise DataError(f'{members[0][1]}: unknown extension "{ending}", expected {ACCEPTED}{hint}')
        members.sort()
        first = members[0][0]
        if [number for number, _ in members] != list(range(first, first + len(members))) or first > 1:
            raise DataError(
                f"{name}: found parts {', '.join(str(n) for n, _ in members)}, expected all from the first on"
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
        if not isinstance(splits, list):
            raise DataError(f'{dictionary}: no list "splits", expected what save_to_disk writes')
        wanted = splits if split == "all" else [split]
        if missing := [name for name in wanted if name not in splits]:
            raise DataError(
                f'{folder}: no split "{missing[0]}", found {_listed(splits)} (--split names another)'
            )
        return [path for name in wanted for path in _in_folder(os.path.join(folder, name), None, "all")]
    state = os.path.join(folder, "state.json")
    if os.path.isfile(state) and isinstance(_json(state).get("_data_files"), list):
        return _named(folder, [entry["filename"] for entry in _json(state)["_data_files"]], state)
    configurations = _configurations(os.path.join(folder, "README.md"))
    if configurations:
        return _configured(folder, configurations, config, split)
    if config is not None:
        if not os.path.isdir(os.path.join(folder, config)):
            raise DataError(f'{folder}: no configuration "{config}" in README.md and no folder of this name')
        return _listed_files(os.path.join(folder, config), split)
    return _listed_files(folder, split)


def _listed_files(folder: str, split: str) -> list[str]:
    """Data files below a folder, of one split where their names tell splits."""
    inside = [
        os.path.relpath(os.path.join(base, name), folder)
        for base, folders, names in os.walk(folder)
        for name in names
        if file_format(name) and not name.startswith(("cache-", ".")) and not name.endswith(NO_DATA)
    ]
    hidden = [path for path in inside if any(part.startswith(".") for part in path.split(os.sep))]
    inside = sorted(
        path for path in inside if path not in hidden and not _is_ours(os.path.join(folder, path))
    )
    if not inside:
        raise DataError(f"{folder}: no file to read in this folder, expected {ACCEPTED}")
    splits = {path: split_of(path) for path in inside}
    told = sorted({name for name in splits.values() if name})
    if split != "all" and told:
        if split not in told:
            raise DataError(
                f'{folder}: no files of split "{split}", found {_listed(told)} (--split names another)'
            )
        inside = [path for path in inside if splits[path] == split]
    return [os.path.join(folder, path) for path in inside]


def _is_ours(path: str) -> bool:
    """Whether a file is what stands beside token files: PREFIX.json or PREFIX.position.json."""
    if not path.endswith(".json"):
        return False
    with open(path, "rb") as file:
        return b'"format": "hero ' in file.read(64)


def split_of(path: str) -> str | None:
    """The split that a path inside a data set's folder tells: `data/NAME-00000-of-00012.parquet`, or a usual
    name (train, validation, test, ...) as a word of the file's or a folder's name; the file's name counts
    first."""
    shard = SHARD.search(path.replace(os.sep, "/"))
    if shard:
        return SPLIT_WORDS.get(shard["split"], shard["split"])
    for component in reversed(path.split(os.sep)):
        for word in re.split(r"[-._ 0-9]+", component.lower()):
            if word in SPLIT_WORDS:
                return SPLIT_WORDS[word]
    return None


def _configurations(readme: str) -> list[dict[str, Any]]:
    """The `configs:` of a data set card that name files."""
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
        raise DataError(f"{readme}: broken YAML head ({str(error).splitlines()[0]})") from error
    entries = card.get("configs") if isinstance(card, dict) else None
    return [
        entry
        for entry in entries or []
        if isinstance(entry, dict) and ("data_files" in entry or "data_dir" in entry)
    ]


def _configured(folder: str, entries: list[dict[str, Any]], config: str | None, split: str) -> list[str]:
    readme = os.path.join(folder, "README.md")
    names = [str(entry.get("config_name", "default")) for entry in entries]
    if config is None:
        usual = [name for name, entry in zip(names, entries, strict=True) if entry.get("default") is True]
        usual += ["default"] if "default" in names else names if len(names) == 1 else []
        config = usual[0] if usual else None
        if config is None:
            raise DataError(
                f"{readme}: found configurations {_listed(names)}, expected --config to choose one"
            )
    if config not in names:
        raise DataError(f'{readme}: no configuration "{config}", found {_listed(names)}')
    entry = entries[names.index(config)]
    base = os.path.join(folder, str(entry.get("data_dir", "")))
    if "data_files" not in entry:
        return _listed_files(base, split)
    patterns = _patterns(entry["data_files"], readme)
    if split != "all" and split not in patterns:
        raise DataError(
            f'{readme}: configuration "{config}" has no split "{split}", found {_listed(patterns)} '
            "(--split names another)"
        )
    wanted = [p for name, group in patterns.items() if split in ("all", name) for p in group]
    return _named(base, wanted, readme)


def _patterns(data_files: Any, readme: str) -> dict[str, list[str]]:
    """Split -> globs; `data_files` in any of its forms: a glob, globs, {split: globs}, [{split, path:
    globs}]."""

    def globs(value: Any) -> list[str]:
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(v, str) for v in values):
            raise DataError(f"{readme}: data_files holds {value!r}, expected paths")
        return values

    if isinstance(data_files, dict):
        return {str(name): globs(value) for name, value in data_files.items()}
    if isinstance(data_files, list) and data_files and all(isinstance(entry, dict) for entry in data_files):
        return {str(entry.get("split", "train")): globs(entry.get("path")) for entry in data_files}
    return {"train": globs(data_files)}


def _named(folder: str, patterns: list[str], where: str) -> list[str]:
    files = []
    for pattern in patterns:
        matched = [p for p in _matches(os.path.join(glob.escape(folder), pattern)) if os.path.isfile(p)]
        if not matched:
            raise DataError(f'{where}: names "{pattern}", but no such file is in {folder}')
        files += [path for path in matched if path not in files]
    return files


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: found {type(value).__name__}, expected an object")
    return value
