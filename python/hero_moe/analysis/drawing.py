"""Shared parts of the analysis figures: rendering to PNG, SVG and HTML, layer axes, tables of layer pairs."""

from __future__ import annotations

import base64
import io
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, Locator, MaxNLocator

from hero_moe.analysis.contents import Form, Model
from hero_moe.report import page
from hero_moe.report.figures import GRAY, STYLE, inline_svg, svg_text

PRINT_DPI = 200
PAGE_PIXELS = 108  # CSS pixels per inch of a figure
MAX_SVG = 1_000_000  # characters; the page embeds a larger figure as PNG if that is smaller
FEW_LAYERS = 12  # up to here, every layer has a tick and every table cell a value
UNSEEN = "#ececec"
NEGATIVE, POSITIVE, NEUTRAL = "#2166AC", "#B2182B", "#0072B2"


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure, its file stem, a short description, and a caption with the key numbers. `form`: the weight
    form with which the page shows it; None for always."""

    name: str
    figure: Figure
    description: str
    caption: str
    form: Form | None = None


def figure_name(name: str, form: Form) -> str:
    """The file stem of a figure that exists in both forms."""
    return name if form == "raw" else f"{name}-{form}"


@dataclass(frozen=True)
class Rendered:
    """A drawing's files and its HTML for the page."""

    name: str
    png: bytes
    svg: str
    html: str


def render(drawing: Drawing) -> Rendered:
    """Renders `drawing` as PNG and SVG; the page embeds the SVG unless it is large."""
    image = io.BytesIO()
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # token glyphs missing in all installed fonts
        drawing.figure.savefig(image, format="png", dpi=PRINT_DPI)
        drawing.figure.set_layout_engine("none")  # keeps the layout for the SVG
        svg = svg_text(drawing.figure)
    png = image.getvalue()
    if len(svg) > MAX_SVG and len(png) * 4 / 3 < len(svg):
        data = base64.b64encode(png).decode("ascii")
        shown = f'<img alt="{escape(drawing.description)}" src="data:image/png;base64,{data}">'
    else:
        shown = inline_svg(svg, drawing.name, escape(drawing.description))
    width = round(drawing.figure.get_figwidth() * PAGE_PIXELS)
    shown_with = f' class="form-{drawing.form}"' if drawing.form else ""
    opening = f'<div style="max-width: {width}px" id="figure-{drawing.name}"{shown_with}>'
    return Rendered(drawing.name, png, svg, f"{opening}{page.figure(shown, drawing.caption)}</div>")


def layer_ticks(axes: Axes, layers: int, x: bool = True, y: bool = False) -> None:
    """Integer ticks for an axis of layers from 1; one per layer if there are few."""
    for axis in ([axes.xaxis] if x else []) + ([axes.yaxis] if y else []):
        if layers <= FEW_LAYERS:
            axis.set_ticks(range(1, layers + 1))
        else:
            axis.set_ticks([1, *range(5, layers + 1, 5)])


def stage_spans(stages: Sequence[int]) -> list[tuple[int, int]]:
    """First and last layer, from 1, of every run of layers of one stage."""
    first = [i for i in range(len(stages)) if i == 0 or stages[i] != stages[i - 1]]
    return [(begin + 1, end) for begin, end in zip(first, [*first[1:], len(stages)])]


def draw_pair_table(
    axes: Axes, table: np.ndarray, model: Model, colors: str, low: float, high: float, percent: bool = False
) -> AxesImage:
    """Draws `table` [L, L], layers as rows, predecessors as columns; gray for invisible predecessors.

    Stages are outlined. With few layers every cell shows its value, as a percentage if `percent`.
    """
    layers = model.layers
    axes.grid(False)
    axes.spines[:].set_visible(False)
    unseen = np.where(np.isnan(table) & np.tri(layers, k=-1, dtype=bool), 1.0, np.nan)
    corners = (0.5, layers + 0.5, layers + 0.5, 0.5)
    flat = matplotlib.colors.ListedColormap([UNSEEN])
    axes.imshow(np.ma.masked_invalid(unseen), cmap=flat, extent=corners, interpolation="none")
    image = axes.imshow(
        np.ma.masked_invalid(table), cmap=colors, vmin=low, vmax=high, extent=corners, interpolation="none"
    )
    if layers <= FEW_LAYERS:
        form = _number_form(high, percent)
        for row, column in np.argwhere(np.isfinite(table)):
            shade = image.cmap(image.norm(table[row, column]))
            dark = np.dot(shade[:3], (0.299, 0.587, 0.114)) < 0.55
            axes.text(
                column + 1,
                row + 1,
                form.format(table[row, column]),
                ha="center",
                va="center",
                fontsize=7.5 if layers <= 8 else 6.5,
                color="white" if dark else "black",
            )
    spans = stage_spans(model.stages)
    for begin, end in spans if len(spans) > 1 else []:
        size = end - begin + 1
        axes.add_patch(
            Rectangle((begin - 0.5, begin - 0.5), size, size, fill=False, edgecolor="#222222", linewidth=1.0)
        )
    layer_ticks(axes, layers, y=True)
    axes.set_xlabel("predecessor layer p")
    axes.set_ylabel("target layer l")
    return image


def _number_form(top: float, percent: bool) -> str:
    """A format that shows two digits of numbers up to `top`."""
    size = math.floor(math.log10(max(top, 1e-4)))
    if percent:
        return f"{{:.{int(np.clip(-1 - size, 0, 2))}%}}"
    return f"{{:.{1 if size >= 1 else max(2, 1 - size)}f}}"


def add_bar(
    figure: Figure, image: ScalarMappable, axes: Axes | np.ndarray, label: str, **options: Any
) -> Colorbar:
    """A color bar without a frame."""
    bar = figure.colorbar(image, ax=axes, **({"shrink": 0.9, "pad": 0.02, "aspect": 28} | options))
    bar.set_label(label)
    bar.outline.set_visible(False)
    return bar


def level_line(axes: Axes, level: float, text: str) -> None:
    """A dotted gray horizontal line, labeled at its right end."""
    axes.axhline(level, color=GRAY, linestyle=":", linewidth=1.2)
    axes.annotate(
        text, (1.0, level), xycoords=("axes fraction", "data"), xytext=(-2, 2), textcoords="offset points",
        ha="right", fontsize=8, color=GRAY,
    )  # fmt: skip


def expert_ticks(experts: int, count: int) -> Locator:
    """At most `count` ticks for experts from 0, at multiples of a divisor of E if possible."""
    step = next((experts // parts for parts in (8, 4, 2) if parts <= count and experts % parts == 0), 0)
    if step:
        return FixedLocator(range(0, experts, step))
    return MaxNLocator(nbins=count, integer=True, min_n_ticks=1)


def pair_name(layer: int, predecessor: int) -> str:
    """`layer 9 → layer 10`: from the source to the target."""
    return f"layer {predecessor} → layer {layer}"
