"""The figure of bench/scaling.py."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

# Color-blind safe colors (Okabe and Ito) and different markers.
STYLES = {"baseline": ("#0072B2", "o"), "hero": ("#D55E00", "s")}
NAMES = {"baseline": "baseline", "hero": "HERO"}
# Rows of the figure: a measured value, the value that arithmetic or the cost model predicts, and the axis.
ROWS = (
    ("step", "step arithmetic", "whole step, µs per token"),
    ("router", "", "all routers, µs per token"),
    ("memory", "predicted memory", "peak tensor memory, MiB"),
)


def draw(path: Path, points: dict[str, list[dict[str, Any]]]) -> None:
    """A column for each sweep; predictions are thin lines without markers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(ROWS), len(points), figsize=(2.9 * len(points), 7.8), squeeze=False, sharex="col"
    )
    for column, (title, line) in enumerate(points.items()):
        for row, (name, prediction, label) in enumerate(ROWS):
            axis = axes[row][column]
            values = [point["value"] for point in line]
            for side, (color, mark) in STYLES.items():
                middle = [median(point[f"{side} {name}"]) for point in line]
                low = [m - min(point[f"{side} {name}"]) for m, point in zip(middle, line, strict=True)]
                high = [max(point[f"{side} {name}"]) - m for m, point in zip(middle, line, strict=True)]
                dashes = "-" if side == "baseline" else "--"
                axis.errorbar(values, middle, yerr=(low, high), color=color, marker=mark, markersize=4, capsize=2,
                              linestyle=dashes, label=NAMES[side])  # fmt: skip
                if prediction:
                    predicted = [median(point[f"{side} {prediction}"]) for point in line]
                    axis.plot(values, predicted, color=color, linewidth=0.8, linestyle=":")
            axis.set_xscale("log", base=2)
            axis.set_xticks(values, [short(value) for value in values])
            axis.minorticks_off()
            axis.tick_params(axis="x", labelrotation=45, labelsize=8)
            axis.set_ylim(bottom=0)
            axis.grid(alpha=0.3)
            if column == 0:
                axis.set_ylabel(label)
        axes[-1][column].set_xlabel(title)
    axes[0][0].plot([], [], color="gray", linewidth=0.8, linestyle=":", label="predicted")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def short(value: int) -> str:
    return f"{value // 1024}k" if value >= 1024 and value % 1024 == 0 else str(value)
