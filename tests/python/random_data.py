"""The files of a random case (layout_strategies.py): data sets with loss masks and validation halves, and
where its options find them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from program import toml, write_megatron

SOURCES = {"first": 40, "second": 25}  # documents of each training half
HELD_OUT = 6


def write_data(folder: Path, vocabulary: int) -> None:
    """Files of all sources, identical for equal vocabularies. Documents have 2 to 40 tokens. No token follows
    itself: equal tokens at the start of a sequence have equal hidden states, and rounding would then decide
    which of them capacity drops."""
    rng = np.random.default_rng(vocabulary)
    for name, count in SOURCES.items():
        for half, documents in ("train", count), ("valid", HELD_OUT):
            steps = [rng.integers(1, vocabulary, rng.integers(1, 40)) for _ in range(documents)]
            tokens = [[0, *(np.cumsum(row) % vocabulary).tolist()] for row in steps]
            tokens = [document[: len(document) - (document[-1] == 0)] for document in tokens]
            write_megatron(folder / f"{name}-{half}", tokens)
            masks = [rng.integers(0, 2, len(document)).tolist() for document in tokens]
            write_megatron(folder / f"{name}-{half}-mask", masks, dtype="uint8")


def placed(options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The options with paths in `folder` for names of data sets and folders."""
    out = dict(options)
    if phases := options.get("data.phase"):
        out["data.phase"] = [
            phase | {"blend": [word.replace(":", f":{folder}/") for word in phase["blend"]]}
            for phase in phases
        ]
    if name := options.get("optim.offload_folder"):
        (folder / name).mkdir(exist_ok=True)
        out["optim.offload_folder"] = str(folder / name)
    return out


def train_words(run: Path, options: dict[str, Any]) -> list[Any]:
    """The arguments of `hero train` for a case. Writes its options next to the run folder, and the data sets
    unless they are there."""
    if not (run.parent / "first-train.idx").exists():
        write_data(run.parent, options["model.vocab_size"])
    file = run.with_suffix(".toml")
    file.write_text(toml(placed(options, run.parent)))
    data = [] if "data.phase" in options else ["--data", run.parent / "first"]
    return ["train", "--config", file, *data, "--run", run]
