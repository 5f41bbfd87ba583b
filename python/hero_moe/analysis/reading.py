"""Reads and checks `analysis.json` and `analysis.safetensors`: a mistake is one line that names file and
key."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from hero_moe.analysis.contents import (
    Analysis,
    Data,
    Distance,
    Model,
    Pair,
    Paths,
    Place,
    Removal,
    StrongCoupling,
    Utilisation,
)
from hero_moe.analysis.fields import Fields
from hero_moe.comparison import Peak
from hero_moe.run_files import InputError


def load_analysis(folder: Path) -> Analysis:
    """Reads the two files in `folder`. Raises `InputError`."""
    path = folder / "analysis.json"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{path}: cannot be read ({reason}), expected what `hero analyze` writes") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start}: found no UTF-8, expected JSON") from error
    try:
        top = Fields(json.loads(text), str(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: broken JSON ({error}), expected what `hero analyze` writes") from error
    model = _model(top.fields("model"))
    pairs = _pairs(top, model.layers)
    default = _default_pair(top, model.layers, pairs)
    blocks = _blocks(folder / "analysis.safetensors", pairs, model.experts)
    analysis = Analysis(
        model=model,
        dependency=top.array("layer_dependency", (model.layers, model.layers), nullable=True),
        strong=_strong(top, "tau", "coupling_by_distance", pairs),
        centred=_strong(top, "centred_tau", "centred_coupling_by_distance", pairs),
        pairs=pairs,
        blocks=blocks,
        default_pair=default,
        data=_data(top, model, set(pairs)) if "data" in top else None,
    )
    if not np.isfinite(analysis.dependency[analysis.visible]).all():
        raise top.fail("layer_dependency", "a number for every one of pairs")
    analysis.dependency[~analysis.visible] = np.nan
    return analysis


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


def _place(fields: Fields, layers: int) -> Place:
    layer = fields.integer("layer", 2, layers)
    return layer, fields.integer("predecessor", 1, layer - 1)


def _pairs(top: Fields, layers: int) -> dict[Place, Pair]:
    pairs: dict[Place, Pair] = {}
    for entry in top.objects("pairs"):
        place = _place(entry, layers)
        if place in pairs:
            raise InputError(f"{entry.where}: found layer {place[0]} from {place[1]} again, expected it once")
        pairs[place] = Pair(*(entry.number(key) for key in ("depth_factor", "norm", "effective_rank")))
    return dict(sorted(pairs.items()))


def _strong(top: Fields, tau: str, key: str, pairs: dict[Place, Pair]) -> StrongCoupling | None:
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


def _default_pair(top: Fields, layers: int, pairs: dict[Place, Pair]) -> Place | None:
    if "default_pair" in top and top.values["default_pair"] is None:
        return next(iter(pairs), None)
    place = _place(top.fields("default_pair"), layers)
    if place not in pairs:
        raise InputError(
            f"{top.where}: default_pair: found layer {place[0]} from {place[1]}, expected one of pairs"
        )
    return place


def _blocks(path: Path, pairs: dict[Place, Pair], experts: int) -> dict[Place, np.ndarray]:
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        message = f"{path}: cannot be read ({reason}), expected the blocks of analysis.json"
        raise InputError(message) from error
    blocks = {}
    for (layer, predecessor), pair in pairs.items():
        name = f"coupling.{layer}.{predecessor}"
        block = tensors.get(name)
        form = "nothing" if block is None else f"{block.dtype} {list(block.shape)}"
        if block is None or block.shape != (experts, experts) or block.dtype != np.float32:
            raise InputError(f"{path}: {name}: found {form}, expected float32 [{experts}, {experts}]")
        norm = float(np.linalg.norm(block.astype(np.float64)))
        if not np.isclose(norm, pair.norm, rtol=1e-3, atol=1e-12):
            raise InputError(
                f"{path}: {name}: found a norm of {norm:.6g}, expected {pair.norm:.6g} as in analysis.json"
            )
        blocks[layer, predecessor] = block
    return blocks


def _data(top: Fields, model: Model, pairs: set[Place]) -> Data:
    layers, data, used = model.layers, top.fields("data"), top.fields("utilisation")
    loss = data.number("loss", nullable=True)
    seeing = {layer for layer, _ in pairs}
    history = _by_layer(top, "history", layers, ("variance_share",), seeing)
    initial = _by_layer(top, "history", layers, ("initial_variance_share",), set())
    agreement = _by_layer(top, "agreement", layers, ("top_k", "top_1"), seeing)
    alone = _by_layer(top, "history_alone", layers, ("top_k", "top_1", "kl"), seeing)
    return Data(
        names=data.texts("names"),
        tokens=data.integer("tokens", 1),
        sequence=data.integer("sequence", 1),
        loss=loss,
        own=_utilisation(top, used, model.folder, model.top_k, loss, (layers, model.experts)),
        baseline=_baseline(used.fields("baseline")) if "baseline" in used else None,
        peak_change_percent=used.number("peak_change_percent") if "baseline" in used else float("nan"),
        variance_share=history["variance_share"],
        initial_variance_share=initial["initial_variance_share"],
        agreement_top_k=agreement["top_k"],
        agreement_top_1=agreement["top_1"],
        alone_top_k=alone["top_k"],
        alone_top_1=alone["top_1"],
        alone_kl=alone["kl"],
        chance_top_k=model.top_k / model.experts,
        removal=_removal(top.fields("removal"), layers, pairs),
        paths=_paths(top.fields("paths"), model),
    )


def _by_layer(
    top: Fields, key: str, layers: int, names: tuple[str, ...], seeing: set[int]
) -> dict[str, np.ndarray]:
    """The `names` of a list of objects, one a layer, as arrays [L]; NaN in layers that are not `seeing`
    history."""
    table = {name: np.full(layers, np.nan) for name in names}
    for entry in top.objects(key):
        layer = entry.integer("layer", 1, layers)
        for name, values in table.items():
            values[layer - 1] = entry.number(name, nullable=layer not in seeing)
    for layer in sorted(seeing):
        if any(np.isnan(values[layer - 1]) for values in table.values()):
            raise InputError(f"{top.where}: {key}: found nothing for layer {layer}, expected an object")
    return table


def _utilisation(
    home: Fields, peaks: Fields, folder: str, top_k: int, loss: float, shape: tuple[int, int]
) -> Utilisation:
    share, peak = home.array("expert_share", shape), peaks.fields("peak")
    return Utilisation(
        folder=folder,
        top_k=top_k,
        share=share,
        peak=Peak(
            layer=peak.integer("layer", 1, shape[0]),
            expert=peak.integer("expert", 0, shape[1] - 1),
            share=peak.number("share"),
        ),
        loss=loss,
    )


def _baseline(fields: Fields) -> Utilisation:
    rows = fields.values.get("expert_share")
    if not isinstance(rows, list) or not rows or not isinstance(rows[0], list) or not rows[0]:
        raise fields.fail("expert_share", "the share of each expert in every layer")
    shape = (len(rows), len(rows[0]))
    top_k, loss = fields.integer("top_k", 1), fields.number("loss", nullable=True)
    return _utilisation(fields, fields, fields.text("folder"), top_k, loss, shape)


def _removal(fields: Fields, layers: int, pairs: set[Place]) -> Removal:
    tables = []
    for key in ("routing_change", "routing_kl"):
        table = fields.array(key, (layers, layers), nullable=True)
        kept = np.full_like(table, np.nan)
        for layer, predecessor in pairs:
            kept[layer - 1, predecessor - 1] = table[layer - 1, predecessor - 1]
        if np.isfinite(kept).sum() != len(pairs):
            raise fields.fail(key, "a number for every one of pairs")
        tables.append(kept)
    entries = fields.objects("loss_without")
    return Removal(
        routing_change=tables[0],
        routing_kl=tables[1],
        predecessors=np.array([entry.integer("predecessor", 1, layers) for entry in entries], dtype=int),
        loss=np.array([entry.number("loss", nullable=True) for entry in entries]),
        loss_change=np.array([entry.number("loss_change", nullable=True) for entry in entries]),
        rank_correlation=fields.number("rank_correlation", nullable=True),
    )


def _paths(fields: Fields, model: Model) -> Paths:
    ids = fields.values.get("ids")
    if not isinstance(ids, list) or not ids:
        raise fields.fail("ids", "the numbers of some tokens")
    shape = (model.layers, len(ids), model.top_k)
    silent = "text" in fields and fields.values["text"] is None
    return Paths(
        ids=fields.integers("ids", (len(ids),)),
        text=None if silent else fields.texts("text", len(ids)),
        experts=fields.integers("experts", shape, model.experts - 1),
        weights=fields.array("weights", shape),
    )
