"""Figures of raw and centered weights together: strong coupling by distance, and expert bias."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from hero_moe.analysis.contents import Analysis, Distance, StrongCoupling
from hero_moe.analysis.drawing import (
    NEGATIVE,
    POSITIVE,
    Drawing,
    add_bar,
    expert_ticks,
    layer_ticks,
    level_line,
)
from hero_moe.report.figures import new_figure
from hero_moe.report.routing_figures import label_outside


def distances(analysis: Analysis) -> Drawing:
    """Stacked bars: percentage of strongly negative and strongly positive entries at each layer distance, raw
    and centered."""
    figure, grid = new_figure(3.6, columns=2)
    raw, centered = analysis.coupling["raw"].strong, analysis.coupling["centered"].strong
    assert raw and centered, "drawn only with a visible pair"
    _strong_bars(grid[0, 0], raw, "Raw weights", "w")
    _strong_bars(grid[0, 1], centered, "Centered weights", "w′")
    label_outside(grid, 2, "layer distance l − p", "share of all expert pairs")
    top = max(axes.get_ylim()[1] for axes in grid[0])
    for axes in grid[0]:
        axes.set_ylim(0, top)
    grid[0, 0].legend(ncols=2, frameon=False, loc="upper right", borderaxespad=0.0)
    most = max(raw.distances, key=_share)
    least = min(raw.distances, key=_share)
    caption = (
        "Left: raw weights with |w| > τ, the 90th percentile over all blocks: 10% of all weights. Maximum "
        f"at distance {most.distance}: {_share(most):.1f}% ({most.negative:.1f}% negative)"
    )
    if least is not most:
        caption += f"; minimum at {least.distance}: {_share(least):.1f}%"
    caption += (
        f". Right: the same for centered weights w′. Negative fraction of the strong weights: "
        f"{_negative_part(raw):.0%} of w, {_negative_part(centered):.0%} of w′."
    )
    return Drawing("coupling-by-distance", figure, "Strong coupling by layer distance", caption)


def _share(entry: Distance) -> float:
    return entry.negative + entry.positive


def _negative_part(strong: StrongCoupling) -> float:
    """Negative fraction of all entries with magnitude above tau; 0 if there are none."""
    total = sum(_share(entry) * entry.entries for entry in strong.distances)
    negative = sum(entry.negative * entry.entries for entry in strong.distances)
    return negative / total if total else 0.0


def _strong_bars(axes: Axes, strong: StrongCoupling, title: str, symbol: str) -> None:
    x = [entry.distance for entry in strong.distances]
    negative = [entry.negative for entry in strong.distances]
    positive = [entry.positive for entry in strong.distances]
    axes.bar(x, negative, color=NEGATIVE, label="negative, below −τ", width=0.75)
    axes.bar(x, positive, bottom=negative, color=POSITIVE, label="positive, above τ", width=0.75)
    level_line(axes, 10.0, "all distances")
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    layer_ticks(axes, max(x))
    axes.set_xlim(0.4, max(x) + 0.6)
    axes.grid(axis="x", visible=False)
    axes.set_title(f"{title}: |{symbol}| > τ = {strong.tau:.3g}", loc="left")
    axes.set_ylim(0, 1.2 * max(*map(_share, strong.distances), 10.0))


def bias(analysis: Analysis) -> Drawing:
    """Heat map of the bias of each expert of each layer from the history weights."""
    values = analysis.expert_bias
    layers, experts = values.shape
    limit = float(np.abs(values).max()) or 1.0
    figure, grid = new_figure(float(np.clip(1.4 + 0.11 * layers, 2.8, 4.8)))
    axes = grid[0, 0]
    axes.grid(False)
    image = axes.imshow(
        values, aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="none",
        extent=(-0.5, experts - 0.5, layers + 0.5, 0.5),
    )  # fmt: skip
    axes.xaxis.set_major_locator(expert_ticks(experts, 8))
    layer_ticks(axes, layers, x=False, y=True)
    axes.set_xlabel("expert")
    axes.set_ylabel("layer")
    axes.set_title("Bias of each expert: row means removed by centering", loc="left")
    add_bar(figure, image, axes, "sum of row means")
    layer, expert = np.unravel_index(np.argmax(np.abs(values)), values.shape)
    caption = (
        "Sum of the row means over a layer's blocks, minus the mean over the layer's experts. Multiplied by "
        "ρ, it is added to the expert's logit regardless of the routing in earlier layers. Largest in "
        f"magnitude: {values[layer, expert]:+.3g}, expert {expert} of layer {layer + 1}."
    )
    return Drawing("expert-bias", figure, "Bias of each expert in the history weights", caption)
