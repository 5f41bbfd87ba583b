"""What `analysis.json` and `analysis.safetensors` hold (docs/analysis.md). Layers count from 1, experts from
0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hero_moe.report.comparison import Peak

Place = tuple[int, int]  # layer, predecessor
Form = Literal["raw", "centered"]  # blocks as in the paper; without the means of their rows and columns
FORMS: tuple[Form, Form] = ("raw", "centered")


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
class Coupling:
    """What depends on the form of the blocks. `dependency` and `effective_rank` [L, L] are NaN where a layer
    does not see a predecessor; `blocks` are [E, E], target experts down; `strong` is None where no layer sees
    another."""

    dependency: np.ndarray
    effective_rank: np.ndarray
    strong: StrongCoupling | None
    blocks: dict[Place, np.ndarray]


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
    """What removing one predecessor's contribution does, the whole of it or that of the centered blocks:
    [L, L] at (layer, predecessor), NaN where there is none; losses by predecessor."""

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
    removal: dict[Form, Removal]
    paths: Paths


@dataclass(frozen=True, eq=False)
class Analysis:
    """All of it. `depth_factor`, sqrt((l-1)/M_l), has the visible pairs as its keys; `expert_bias` [L, E] is
    the sum of the row means of a layer's blocks, minus its mean over experts. `default_pair` is None where no
    layer sees another."""

    model: Model
    depth_factor: dict[Place, float]
    coupling: dict[Form, Coupling]
    expert_bias: np.ndarray
    default_pair: Place | None
    data: Data | None

    @property
    def visible(self) -> np.ndarray:
        """Whether a layer sees a predecessor, [L, L]."""
        seen = np.zeros((self.model.layers, self.model.layers), dtype=bool)
        for layer, predecessor in self.depth_factor:
            seen[layer - 1, predecessor - 1] = True
        return seen
