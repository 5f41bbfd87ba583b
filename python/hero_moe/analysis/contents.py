"""What `analysis.json` and `analysis.safetensors` hold (docs/analysis.md). Layers count from 1, experts from
0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hero_moe.comparison import Peak

Place = tuple[int, int]  # layer, predecessor


@dataclass(frozen=True, eq=False)
class Model:
    """The model's shape and its history; `stages` holds each layer's stage, `decoder_layer` its number on
    disk."""

    folder: str
    step: int | None
    layers: int
    experts: int
    top_k: int
    hidden_size: int
    stages: list[int]
    window: int | None
    scale: bool
    history: str
    detach: bool
    decoder_layer: list[int]


@dataclass(frozen=True)
class Pair:
    """A layer and a predecessor that it sees: sqrt((l-1)/M_l), Frobenius norm of the raw block, effective
    rank."""

    depth_factor: float
    norm: float
    effective_rank: float


@dataclass(frozen=True)
class Distance:
    """Percent of the entries at one layer distance that lie below -tau and above tau."""

    distance: int
    negative: float
    positive: float
    entries: int


@dataclass(frozen=True)
class StrongCoupling:
    """The entries beyond tau, the 90th percentile of the magnitudes of all, by distance."""

    tau: float
    distances: list[Distance]


@dataclass(frozen=True, eq=False)
class Utilisation:
    """Share of all tokens that each expert receives [L, E], the highest of them, and the model's folder."""

    folder: str
    top_k: int
    share: np.ndarray
    peak: Peak
    loss: float


@dataclass(frozen=True, eq=False)
class Removal:
    """What taking out one predecessor's contribution does: [L, L] at (layer, predecessor), NaN where there is
    none;
    losses by predecessor."""

    routing_change: np.ndarray
    routing_kl: np.ndarray
    predecessors: np.ndarray
    loss: np.ndarray
    loss_change: np.ndarray
    rank_correlation: float


@dataclass(frozen=True, eq=False)
class Paths:
    """The experts [L, T, K] of T consecutive tokens, by falling weight, and their weights [L, T, K]."""

    ids: np.ndarray
    text: list[str] | None
    experts: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True, eq=False)
class Data:
    """What a forward pass over data showed. Arrays over layers are [L], NaN in layers without a visible
    predecessor; the initial share of the variance is NaN also where it cannot be told."""

    names: list[str]
    tokens: int
    sequence: int
    loss: float
    own: Utilisation
    baseline: Utilisation | None
    peak_change_percent: float
    variance_share: np.ndarray
    initial_variance_share: np.ndarray
    agreement_top_k: np.ndarray
    agreement_top_1: np.ndarray
    alone_top_k: np.ndarray
    alone_top_1: np.ndarray
    alone_kl: np.ndarray
    chance_top_k: float
    removal: Removal
    paths: Paths


@dataclass(frozen=True, eq=False)
class Analysis:
    """All of it; `dependency` [L, L] is NaN where a layer does not see a predecessor, `blocks` are raw [E,
    E].

    `strong` is of the raw entries; `centred` of the entries less their source expert's mean over the target
    experts, which the softmax does not see. Both and `default_pair` are None where no layer sees another."""

    model: Model
    dependency: np.ndarray
    strong: StrongCoupling | None
    centred: StrongCoupling | None
    pairs: dict[Place, Pair]
    blocks: dict[Place, np.ndarray]
    default_pair: Place | None
    data: Data | None

    def by_pair(self, values: dict[Place, float]) -> np.ndarray:
        """`values` as a table [L, L], NaN elsewhere."""
        table = np.full((self.model.layers, self.model.layers), np.nan)
        for (layer, predecessor), value in values.items():
            table[layer - 1, predecessor - 1] = value
        return table

    @property
    def visible(self) -> np.ndarray:
        """Whether a layer sees a predecessor, [L, L]."""
        return np.isfinite(self.by_pair({place: 1.0 for place in self.pairs}))
