"""Contents of `analysis.json` and `analysis.safetensors` (docs/analysis.md). Layers count from 1, experts
from 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hero_moe.report.comparison import Peak

LayerPair = tuple[int, int]  # layer, predecessor
Form = Literal["raw", "centered"]  # blocks as in the paper; or without the means of their rows and columns
FORMS: tuple[Form, Form] = ("raw", "centered")


@dataclass(frozen=True, eq=False)
class Model:
    """The model's shape and history settings; `stages` has each layer's stage, `decoder_layer` its index in
    the model folder."""

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
class Distance:
    """Percentage of the entries at one layer distance below -tau and above tau."""

    distance: int
    negative: float
    positive: float
    entries: int


@dataclass(frozen=True)
class StrongCoupling:
    """The entries with magnitude above tau, the 90th percentile of all magnitudes, by distance."""

    tau: float
    distances: list[Distance]


@dataclass(frozen=True, eq=False)
class Coupling:
    """Values that depend on the form of the blocks. `dependency` and `effective_rank` [L, L] are NaN if the
    predecessor is not visible; `blocks` are [E, E] with target experts as rows; `strong` is None if no layer
    has a visible predecessor."""

    dependency: np.ndarray
    effective_rank: np.ndarray
    strong: StrongCoupling | None
    blocks: dict[LayerPair, np.ndarray]


@dataclass(frozen=True, eq=False)
class Utilization:
    """Share of all tokens that each expert receives [L, E], the maximum, and the model's folder."""

    folder: str
    top_k: int
    share: np.ndarray
    peak: Peak
    loss: float


@dataclass(frozen=True, eq=False)
class Removal:
    """Effects of removing one predecessor's contribution, raw or centered: [L, L] at (layer, predecessor),
    NaN for invisible pairs; losses by predecessor."""

    routing_change: np.ndarray
    routing_kl: np.ndarray
    predecessors: np.ndarray
    loss: np.ndarray
    loss_change: np.ndarray
    rank_correlation: float


@dataclass(frozen=True, eq=False)
class Paths:
    """The experts [L, T, K] of T consecutive tokens, in descending order of weight, and their weights [L, T,
    K]."""

    ids: np.ndarray
    text: list[str] | None
    experts: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True, eq=False)
class Data:
    """Results of a forward pass over data. Arrays over layers are [L], NaN in layers without a visible
    predecessor; the initial variance share is also NaN if it is unknown."""

    names: list[str]
    tokens: int
    sequence: int
    loss: float
    own: Utilization
    baseline: Utilization | None
    peak_change_percent: float
    variance_share: np.ndarray
    initial_variance_share: np.ndarray
    agreement_top_k: np.ndarray
    agreement_top_1: np.ndarray
    alone_top_k: np.ndarray
    alone_top_1: np.ndarray
    alone_kl: np.ndarray
    chance_top_k: float
    removal: dict[Form, Removal]
    paths: Paths


@dataclass(frozen=True, eq=False)
class Analysis:
    """The whole analysis. The keys of `depth_factor`, sqrt((l-1)/M_l), are the visible pairs; `expert_bias`
    [L, E] is the sum of the row means of a layer's blocks, minus its mean over experts. `default_pair` is
    None if there is no visible pair."""

    model: Model
    depth_factor: dict[LayerPair, float]
    coupling: dict[Form, Coupling]
    expert_bias: np.ndarray
    default_pair: LayerPair | None
    data: Data | None

    @property
    def visible(self) -> np.ndarray:
        """Whether a predecessor is visible to a layer, [L, L]."""
        seen = np.zeros((self.model.layers, self.model.layers), dtype=bool)
        for layer, predecessor in self.depth_factor:
            seen[layer - 1, predecessor - 1] = True
        return seen
