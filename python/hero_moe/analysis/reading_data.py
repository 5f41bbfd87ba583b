"""Reads and checks the keys of `analysis.json` that need a forward pass."""

from __future__ import annotations

import numpy as np

from hero_moe.analysis.contents import FORMS, Data, Form, LayerPair, Model, Paths, Removal, Utilization
from hero_moe.analysis.fields import Fields
from hero_moe.report.comparison import Peak
from hero_moe.report.json_lines import InputError


def read_data(top: Fields, model: Model, pairs: set[LayerPair]) -> Data:
    """The keys that a forward pass adds; `pairs` are the visible ones. Raises `InputError`."""
    layers, data, used = model.layers, top.fields("data"), top.fields("utilisation")
    loss = data.number("loss", nullable=True)
    seeing = {layer for layer, _ in pairs}
    history = _by_layer(top, "history", layers, ("variance_share",), seeing, nullable=True)
    initial = _by_layer(top, "history", layers, ("initial_variance_share",), set())
    agreement = _by_layer(top, "agreement", layers, ("top_k", "top_1"), seeing)
    alone = _by_layer(top, "history_alone", layers, ("top_k", "top_1", "kl"), seeing)
    return Data(
        names=data.texts("names"),
        tokens=data.integer("tokens", 1),
        sequence=data.integer("sequence", 1),
        loss=loss,
        own=_utilization(top, used, model.folder, model.top_k, loss, (layers, model.experts)),
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
        removal={form: _removal(top.fields("removal"), layers, pairs, form) for form in FORMS},
        paths=_paths(top.fields("paths"), model),
    )


def _by_layer(
    top: Fields, key: str, layers: int, names: tuple[str, ...], seeing: set[int], *, nullable: bool = False
) -> dict[str, np.ndarray]:
    """The `names` of a list of objects, one per layer, as arrays [L]; NaN in layers not in `seeing`, and for null
    if `nullable`."""
    table = {name: np.full(layers, np.nan) for name in names}
    found = set()
    for entry in top.objects(key):
        layer = entry.integer("layer", 1, layers)
        for name, values in table.items():
            values[layer - 1] = entry.number(name, nullable=nullable or layer not in seeing)
        found.add(layer)
    for layer in sorted(seeing - found):
        raise InputError(f"{top.where}: {key}: found nothing for layer {layer}, expected an object")
    return table


def _utilization(
    home: Fields, peaks: Fields, folder: str, top_k: int, loss: float, shape: tuple[int, int]
) -> Utilization:
    share, peak = home.array("expert_share", shape), peaks.fields("peak")
    return Utilization(
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


def _baseline(fields: Fields) -> Utilization:
    rows = fields.values.get("expert_share")
    if not isinstance(rows, list) or not rows or not isinstance(rows[0], list) or not rows[0]:
        raise fields.fail("expert_share", "the share of each expert in every layer")
    shape = (len(rows), len(rows[0]))
    top_k, loss = fields.integer("top_k", 1), fields.number("loss", nullable=True)
    return _utilization(fields, fields, fields.text("folder"), top_k, loss, shape)


def _removal(fields: Fields, layers: int, pairs: set[LayerPair], form: Form) -> Removal:
    prefix = "" if form == "raw" else f"{form}_"
    tables = []
    for key in (f"{prefix}routing_change", f"{prefix}routing_kl"):
        table = fields.array(key, (layers, layers), nullable=True)
        kept = np.full_like(table, np.nan)
        for layer, predecessor in pairs:
            kept[layer - 1, predecessor - 1] = table[layer - 1, predecessor - 1]
        if np.isfinite(kept).sum() != len(pairs):
            raise fields.fail(key, "a number for each of pairs")
        tables.append(kept)
    entries = fields.objects("loss_without")
    return Removal(
        routing_change=tables[0],
        routing_kl=tables[1],
        predecessors=np.array([entry.integer("predecessor", 1, layers) for entry in entries], dtype=int),
        loss=np.array([entry.number(f"{prefix}loss", nullable=True) for entry in entries]),
        loss_change=np.array([entry.number(f"{prefix}loss_change", nullable=True) for entry in entries]),
        rank_correlation=fields.number(f"{prefix}rank_correlation", nullable=True),
    )


def _paths(fields: Fields, model: Model) -> Paths:
    ids = fields.values.get("ids")
    if not isinstance(ids, list) or not ids:
        raise fields.fail("ids", "token ids")
    shape = (model.layers, len(ids), model.top_k)
    silent = "text" in fields and fields.values["text"] is None
    return Paths(
        ids=fields.integers("ids", (len(ids),)),
        text=None if silent else fields.texts("text", len(ids)),
        experts=fields.integers("experts", shape, model.experts - 1),
        weights=fields.array("weights", shape),
    )
