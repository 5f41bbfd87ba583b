"""Reading run folders: `config.toml`, `metrics.jsonl`, `routing.jsonl`, `starts.jsonl` and `eval.json`.

Every error in these files raises an `InputError` with one line that contains the file and the line number. An
incomplete last line of a JSON Lines file is ignored, because the run may still be writing it.
"""

from __future__ import annotations

import json
import tomllib
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hero_moe.json_text import parse_json
from hero_moe.report.json_lines import (
    INTEGER_BOUND,
    NAN,
    InputError,
    integer,
    json_lines,
    number,
    numbers,
    read,
)
from hero_moe.report.layer_series import LayerSeries
from hero_moe.report.norm_series import NormSeries, read_norms
from hero_moe.report.starts import Parent, Start, read_starts
from hero_moe.report.valid_series import ValidSeries, read_valid

SCALARS = (
    "loss",
    "lm_loss",
    "mtp_loss",
    "lr",
    "grad_norm",
    "step_ms",
    "tokens_per_second",
    "mfu",
    "peak_memory_mib",
    "max_expert_share",
)


@dataclass(frozen=True, eq=False)
class Metrics:
    """The records of `metrics.jsonl`, N of them, with strictly ascending steps.

    `scalars` maps each name in `SCALARS` to an array [N]; `layers` maps each name in `LAYER_SERIES` that the
    file holds to an array [N, L]. Missing and null values are NaN.
    """

    steps: np.ndarray
    tokens: np.ndarray
    scalars: dict[str, np.ndarray]
    layers: dict[str, np.ndarray]
    norms: NormSeries | None  # None: the run logged none
    valid: ValidSeries | None  # None: no validation


@dataclass(frozen=True, eq=False)
class Routing:
    """Expert shares [L, E], the fraction of all tokens that each expert receives (uniform: K/E): mean of the
    snapshots at `steps`, those in the last tenth of the run's steps, or else the last one."""

    steps: list[int]
    share: np.ndarray


@dataclass(frozen=True)
class Evaluation:
    """One entry of `eval.json`: loss in nats per token on a dataset. `path` of its token files, and `digest` of
    their contents; "" if not recorded."""

    dataset: str
    path: str
    digest: str
    step: int | None
    tokens: int | None
    loss: float
    perplexity: float


@dataclass(frozen=True, eq=False)
class Run:
    """One run folder. `config` is flat: `{"router.kind": "hero", ...}`."""

    name: str
    path: Path
    config: dict[str, Any]
    metrics: Metrics
    routing: Routing | None
    evaluations: list[Evaluation]
    starts: list[Start]
    """The first start and every resume; empty for runs of older versions."""

    @property
    def parent(self) -> Parent | None:
        """The checkpoint that a branch continues from; its metrics begin after that step."""
        return self.starts[0].parent if self.starts else None

    @property
    def is_baseline(self) -> bool:
        """Whether its router reads no history: the first kind in src/config/router_kinds.cpp."""
        return self.config.get("router.kind") == "baseline"

    @property
    def has_history(self) -> bool:
        """Whether any layer of this run reported a history diagnostic."""
        return any(
            np.isfinite(self.metrics.layers[key]).any()
            for key in ("rho", "history_variance_share")
            if key in self.metrics.layers
        )

    @property
    def uniform_share(self) -> float | None:
        """K/E, the share of every expert under perfect balance, or None if the configuration has no such
        keys."""
        experts, chosen = (self.config.get(f"model.{key}") for key in ("num_experts", "num_experts_per_tok"))
        return chosen / experts if experts and chosen else None


def last_tenth(count: int) -> int:
    """Number of records in the last tenth of `count`, at least one."""
    return max(1, -(-count // 10))


def _read_metrics(path: Path) -> Metrics:
    steps, tokens = array("q"), array("q")
    scalars = {key: array("d") for key in SCALARS}
    layers = LayerSeries()
    norms: list[tuple[str, int, Any]] = []
    valid: list[tuple[str, int, dict[str, Any]]] = []
    for where, record in json_lines(path):
        for key in ("loss", "lm_loss"):
            if key not in record:
                raise InputError(f"{where}: {key}: found nothing, expected a number or null")
        step = integer(record, where, "step")
        if steps and step <= steps[-1]:
            raise InputError(f"{where}: step: found {step} after {steps[-1]}, expected ascending steps")
        steps.append(step)
        tokens.append(integer(record, where, "tokens"))
        for key, column in scalars.items():
            value: Any = record.get(key, NAN)
            column.append(value if type(value) is float else number(value, where, key))
        if record.get("norms") is not None:
            norms.append((where, step, record["norms"]))
        if "valid_loss" in record:
            valid.append((where, step, record))
        layers.add(where, record.get("layers") or {})
    if not steps:
        raise InputError(f"{path}: found no complete line, expected at least one step")
    return Metrics(
        steps=np.array(steps),
        tokens=np.array(tokens),
        scalars={key: np.array(column) for key, column in scalars.items()},
        layers=layers.arrays(),
        norms=read_norms(norms),
        valid=read_valid(valid),
    )


def _read_routing(path: Path, since: int) -> Routing | None:
    """The mean of the complete snapshots from step `since`, or the last one before it, or None."""
    steps: list[int] = []
    total = np.zeros(())
    for where, record in json_lines(path) if path.exists() else ():
        step, share = integer(record, where, "step"), _read_share(record, where)
        if not steps or steps[-1] < since or share.shape != total.shape:
            steps, total = [], np.zeros(share.shape)
        steps.append(step)
        total = total + share
    return Routing(steps, total / len(steps)) if steps else None


def _read_share(record: dict[str, Any], where: str) -> np.ndarray:
    rows = record.get("expert_share")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) and row for row in rows):
        raise InputError(f"{where}: expert_share: found no rows, expected [[share of each expert] per layer]")
    if len({len(row) for row in rows}) != 1:
        raise InputError(
            f"{where}: expert_share: found rows of different lengths, expected one value per expert"
        )
    return np.array([numbers(row, where, "expert_share") for row in rows], dtype=float)


def _read_evaluations(path: Path) -> list[Evaluation]:
    if not path.exists():
        return []
    try:
        content = parse_json(read(path))
    except ValueError as error:
        raise InputError(f"{path}: invalid JSON ({error}), expected an evaluation") from error
    entries = content.get("datasets") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and "name" in entry for entry in entries
    ):
        raise InputError(f'{path}: datasets: expected a list of {{"name", "tokens", "loss", "perplexity"}}')
    data = [_data_files(entry, str(path)) for entry in entries]
    return [
        Evaluation(
            dataset=str(entry["name"]),
            path=prefix,
            digest=digest,
            step=integer(content, str(path), "step") if "step" in content else None,
            tokens=integer(entry, str(path), "tokens") if "tokens" in entry else None,
            loss=number(entry.get("loss"), str(path), "loss"),
            perplexity=number(entry.get("perplexity"), str(path), "perplexity"),
        )
        for (prefix, digest), entry in zip(data, entries)
    ]


def _data_files(entry: dict[str, Any], where: str) -> tuple[str, str]:
    """The path of the .bin file without its extension, and a digest of all files; "" if not recorded."""
    files = entry.get("token_files") or {}
    if not isinstance(files, dict):
        raise InputError(f"{where}: token_files: found {type(files).__name__}, expected an object")
    paths = [file.removesuffix(".bin") for file in files if file.endswith(".bin")]
    digests = sorted(json.dumps(digest, sort_keys=True) for digest in files.values())
    return min(paths, key=len, default=""), "\n".join(digests)


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"router": {"kind": "hero"}}` as `{"router.kind": "hero"}`."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = flatten(tomllib.loads(read(path).decode("utf-8")))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: invalid TOML ({error}), expected a run's configuration") from error
    for key in ("model.num_experts", "model.num_experts_per_tok"):
        value = config.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < INTEGER_BOUND:
            raise InputError(f"{path}: {key}: found {str(value)[:40]}, expected a positive integer")
    return config


def load_run(path: Path, name: str) -> Run:
    """Reads the run folder `path`, named `name` on the page. Raises `InputError`."""
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except OSError as error:  # a name that is too long
        raise InputError(f"{path}: cannot be read ({error.strerror}), expected a run folder") from error
    if not is_folder:
        raise InputError(f"{path}: {'found a file' if exists else 'no such folder'}, expected a run folder")
    config = _read_config(path / "config.toml")
    metrics = _read_metrics(path / "metrics.jsonl")
    late = metrics.steps[-last_tenth(len(metrics.steps)) :]
    return Run(
        name=name,
        path=path,
        config=config,
        metrics=metrics,
        routing=_read_routing(path / "routing.jsonl", int(late[0])),
        evaluations=_read_evaluations(path / "eval.json"),
        starts=read_starts(path / "starts.jsonl"),
    )
