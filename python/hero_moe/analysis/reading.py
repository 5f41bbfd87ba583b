"""Reads and checks `analysis.json` and `analysis.safetensors`: an error is one line with file and key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from hero_moe.analysis.contents import (
    FORMS,
    Analysis,
    Coupling,
    Distance,
    Form,
    LayerPair,
    Model,
    StrongCoupling,
)
from hero_moe.analysis.fields import Fields
from hero_moe.analysis.reading_data import read_data
from hero_moe.json_text import parse_json
from hero_moe.report.json_lines import InputError


def load_analysis(folder: Path) -> Analysis:
    """Reads the two files in `folder`. Raises `InputError`."""
    path = folder / "analysis.json"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"{path}: cannot be read ({reason}), expected the output of `hero analyze`"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start}: found invalid UTF-8, expected JSON") from error
    try:
        top = Fields(parse_json(text), str(path))
    except ValueError as error:
        raise InputError(f"{path}: invalid JSON ({error}), expected the output of `hero analyze`") from error
    model = _model(top.fields("model"))
    pairs = _pairs(top, model.layers)
    default = _default_pair(top, model.layers, pairs)
    tensors = _tensors(folder / "analysis.safetensors")
    return Analysis(
        model=model,
        depth_factor={place: entry.number("depth_factor") for place, entry in pairs.items()},
        coupling={form: _coupling(top, model, pairs, tensors, form) for form in FORMS},
        expert_bias=top.array("expert_bias", (model.layers, model.experts)),
        default_pair=default,
        data=read_data(top, model, set(pairs)) if "data" in top else None,
    )


def _model(fields: Fields) -> Model:
    layers = fields.integer("layers", 1)
    experts = fields.integer("experts", 1)
    history = fields.text("history")
    if history not in ("stage", "global"):
        raise fields.fail("history", '"stage" or "global"')
    return Model(
        folder=fields.text("folder"),
        step=fields.integer_or_null("step", 0),
        layers=layers,
        experts=experts,
        top_k=fields.integer("top_k", 1, experts),
        hidden_size=fields.integer("hidden_size", 1),
        stages=fields.integers("stages", (layers,)).tolist(),
        window=fields.integer_or_null("window", 1),
        scale=fields.flag("scale"),
        history=history,
        detach=fields.flag("detach"),
        decoder_layer=fields.integers("decoder_layer", (layers,)).tolist(),
    )


def _place(fields: Fields, layers: int) -> LayerPair:
    layer = fields.integer("layer", 2, layers)
    return layer, fields.integer("predecessor", 1, layer - 1)


def _pairs(top: Fields, layers: int) -> dict[LayerPair, Fields]:
    pairs: dict[LayerPair, Fields] = {}
    for entry in top.objects("pairs"):
        place = _place(entry, layers)
        if place in pairs:
            raise InputError(f"{entry.where}: found layer {place[0]} from {place[1]} twice, expected it once")
        pairs[place] = entry
    return dict(sorted(pairs.items()))


def _coupling(
    top: Fields, model: Model, pairs: dict[LayerPair, Fields], tensors: _Tensors, form: Form
) -> Coupling:
    prefix = "" if form == "raw" else f"{form}_"
    shape = (model.layers, model.layers)
    dependency, rank = np.full(shape, np.nan), np.full(shape, np.nan)
    found = top.array(f"{prefix}layer_dependency", shape, nullable=True)
    blocks = {}
    for (layer, predecessor), entry in pairs.items():
        cell = layer - 1, predecessor - 1
        dependency[cell], rank[cell] = found[cell], entry.number(f"{prefix}effective_rank")
        name = f"{'coupling' if form == 'raw' else form}.{layer}.{predecessor}"
        norm = entry.number(f"{prefix}norm")
        blocks[layer, predecessor] = tensors.block(name, model.experts, norm)
        if not np.isfinite(found[cell]):
            raise top.fail(f"{prefix}layer_dependency", "a number for each of pairs")
    strong = _strong(top, f"{prefix}tau", f"{prefix}coupling_by_distance", pairs)
    return Coupling(dependency=dependency, effective_rank=rank, strong=strong, blocks=blocks)


def _strong(top: Fields, tau: str, key: str, pairs: dict[LayerPair, Fields]) -> StrongCoupling | None:
    entries = top.objects(key)
    distances = [entry.integer("distance", 1) for entry in entries]
    expected = sorted({layer - predecessor for layer, predecessor in pairs})
    if sorted(distances) != expected:
        where = f"{top.where}: {key}"
        raise InputError(f"{where}: found {distances}, expected {expected}, as in pairs")
    if not pairs:
        return None
    shares = [
        Distance(distance, entry.number("negative"), entry.number("positive"), entry.integer("entries", 1))
        for distance, entry in zip(distances, entries)
    ]
    return StrongCoupling(top.number(tau), shares)


def _default_pair(top: Fields, layers: int, pairs: dict[LayerPair, Fields]) -> LayerPair | None:
    if "default_pair" in top and top.values["default_pair"] is None:
        return next(iter(pairs), None)
    place = _place(top.fields("default_pair"), layers)
    if place not in pairs:
        raise InputError(
            f"{top.where}: default_pair: found layer {place[0]} from {place[1]}, expected one of pairs"
        )
    return place


class _Tensors:
    """The tensors of `analysis.safetensors`."""

    def __init__(self, path: Path, tensors: dict[str, np.ndarray]) -> None:
        self.path, self.tensors = path, tensors

    def block(self, name: str, experts: int, norm: float) -> np.ndarray:
        """A block [E, E] of this Frobenius norm."""
        block = self.tensors.get(name)
        form = "nothing" if block is None else f"{block.dtype} {list(block.shape)}"
        if block is None or block.shape != (experts, experts) or block.dtype != np.float32:
            raise InputError(f"{self.path}: {name}: found {form}, expected float32 [{experts}, {experts}]")
        with np.errstate(invalid="ignore"):  # some NaN
            found = float(np.linalg.norm(block.astype(np.float64)))
        if not np.isclose(found, norm, rtol=1e-3, atol=1e-12):
            raise InputError(
                f"{self.path}: {name}: found a norm of {found:.6g}, expected {norm:.6g} as in analysis.json"
            )
        return block


def _tensors(path: Path) -> _Tensors:
    try:
        return _Tensors(path, load_file(path))
    except (OSError, SafetensorError, TypeError, AttributeError) as error:  # the last two: other types
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        message = f"{path}: cannot be read ({reason}), expected the blocks of analysis.json"
        raise InputError(message) from error
