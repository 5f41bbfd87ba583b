"""Reads a study folder: `study.json` and its runs. Errors raise `InputError` with one line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hero_moe.json_text import parse_json
from hero_moe.report.json_lines import InputError, number
from hero_moe.report.run_files import Run, load_run

COSTS = (
    "parameters",
    "active_parameters",
    "step_flops_paper",
    "step_flops_exact",
    "router_step_flops_paper",
    "router_step_flops_exact",
)
_KINDS = {str: "a text", int: "an integer", dict: "an object", list: "a list", (int, float): "a number"}


@dataclass(frozen=True)
class Variant:
    """A variant with its finished runs by seed; a variant with the same model as another (`same_as`) has no
    runs."""

    name: str
    same_as: str | None
    layers_cut: int
    cost: dict[str, float]
    runs: dict[int, Run]


@dataclass(frozen=True)
class Study:
    """All variants in order. `baseline` is the first variant with a baseline router and no coupling loss."""

    path: Path
    config: str
    model_type: str
    moe_layers: int
    experts: int
    top_k: int
    steps: int
    tokens_per_step: int
    seeds: list[int]
    variants: list[Variant]
    baseline: Variant

    @property
    def trained(self) -> list[Variant]:
        """The variants that have finished runs."""
        return [variant for variant in self.variants if variant.runs]


def _read(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}), expected a study's description"
        ) from error
    except ValueError as error:
        raise InputError(f"{path}: invalid JSON ({error}), expected a study's description") from error
    if not isinstance(content, dict) or content.get("format") != 1:
        raise InputError(f"{path}: format: expected 1, a study of this version")
    return content


def _value(record: dict[str, Any], where: str, key: str, kind: Any) -> Any:
    value = record.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        found = json.dumps(value)[:40] if key in record else "nothing"
        raise InputError(f"{where}: {key}: found {found}, expected {_KINDS[kind]}")
    return value


def _variant(record: Any, where: str, folder: Path, steps: int) -> Variant:
    if not isinstance(record, dict):
        raise InputError(f"{where}: found {type(record).__name__}, expected an object")
    name = _value(record, where, "name", str)
    cost = _value(record, where, "cost", dict)
    runs = {}
    for seed in (paths := _value(record, where, "runs", dict)):
        if not seed.isdecimal() or len(seed) > 20:
            raise InputError(f"{where}: runs: found {seed[:40]!r}, expected a seed")
        path = _value(paths, f"{where}: runs", seed, str)
        run = load_run(folder / path, path)
        file, last, records = run.path / "metrics.jsonl", run.metrics.steps[-1], len(run.metrics.steps)
        if last != steps:
            raise InputError(f"{file}: found {last} steps, expected the study's {steps}")
        if records != steps:
            raise InputError(f"{file}: found {records} records of {steps} steps, expected one of every step")
        runs[int(seed)] = run
    return Variant(
        name=name,
        same_as=None if record.get("same_as") is None else _value(record, where, "same_as", str),
        layers_cut=_value(record, where, "layers_cut", int),
        cost={
            key: number(_value(cost, f"{where}: cost", key, (int, float)), f"{where}: cost", key)
            for key in COSTS
        },
        runs=runs,
    )


def _pick_baseline(path: Path, variants: list[Variant]) -> Variant:
    for variant in variants:
        for run in variant.runs.values():
            if run.is_baseline and not run.config.get("router.coupling_loss"):
                return variant
    for variant in variants:
        if variant.runs:
            return variant
    raise InputError(f"{path}: variants: found no finished run, expected at least one")


def load_study(folder: Path) -> Study:
    """Reads the folder of `hero study --out`. Raises `InputError`."""
    path = folder / "study.json"
    content = _read(path)
    steps = _value(content, str(path), "steps", int)
    variants = [
        _variant(record, f"{path}: variants[{index}]", folder, steps)
        for index, record in enumerate(_value(content, str(path), "variants", list))
    ]
    return Study(
        path=folder,
        config=_value(content, str(path), "config", str),
        model_type=_value(content, str(path), "model_type", str),
        moe_layers=_value(content, str(path), "moe_layers", int),
        experts=_value(content, str(path), "experts", int),
        top_k=_value(content, str(path), "top_k", int),
        steps=steps,
        tokens_per_step=_value(content, str(path), "tokens_per_step", int),
        seeds=_value(content, str(path), "seeds", list),
        variants=variants,
        baseline=_pick_baseline(path, variants),
    )
