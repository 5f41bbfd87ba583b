"""The paper's table: scores in percent, their standard errors, and differences to the first model."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO

from hero_moe.evals.benchmarks import BENCHMARKS

MEAN = "average"


@dataclass(frozen=True)
class Value:
    """A mean and its standard error, in percent; no error for fewer than two items."""

    mean: float
    error: float | None

    @property
    def mark(self) -> str:
        """For a difference: * more than one standard error, ** more than two."""
        if self.error is None:
            return ""
        return "*" * ((abs(self.mean) > self.error) + (abs(self.mean) > 2 * self.error))


Row = dict[str, Value]
"""Values by benchmark, and their average as MEAN."""


@dataclass(frozen=True)
class Table:
    """Scores of the models, and the difference of each other model to the first."""

    models: dict[str, Row]
    differences: dict[str, Row]
    counts: dict[str, int]
    """Number of items of each benchmark."""

    @property
    def keys(self) -> list[str]:
        return [*self.counts, MEAN]


def mean_of(items: Sequence[float]) -> Value:
    """The mean m of n items x, and sqrt(sum (x - m)^2 / (n (n - 1)))."""
    n = len(items)
    mean = sum(items) / n
    if n < 2:
        return Value(100 * mean, None)
    return Value(100 * mean, 100 * math.sqrt(sum((x - mean) ** 2 for x in items) / (n * (n - 1))))


def average(values: Sequence[Value]) -> Value:
    """Average over k benchmarks with independent items: the error is sqrt(sum e^2) / k."""
    mean, errors = sum(value.mean for value in values) / len(values), [value.error for value in values]
    known = [error for error in errors if error is not None]
    complete = len(known) == len(errors)
    return Value(mean, math.sqrt(sum(e * e for e in known)) / len(errors) if complete else None)


def compare(scores: Mapping[str, Mapping[str, Sequence[float]]]) -> Table:
    """From the scores of every item, 0 to 1: model -> benchmark -> items, the same items for every model.

    Differences are paired: their error is that of the mean of the items' differences.
    """
    rows = {model: _row({k: list(items) for k, items in found.items()}) for model, found in scores.items()}
    first, *others = scores
    differences = {
        model: _row(
            {
                key: [b - a for a, b in zip(scores[first][key], items, strict=True)]
                for key, items in scores[model].items()
            }
        )
        for model in others
    }
    return Table(rows, differences, {key: len(items) for key, items in scores[first].items()})


def _row(found: dict[str, list[float]]) -> Row:
    row = {key: mean_of(items) for key, items in found.items()}
    return row | {MEAN: average(list(row.values()))}


def _title(table: Table, key: str) -> str:
    return BENCHMARKS[key].title if key != MEAN else "Avg."


def _lines(table: Table, number: str, error: str, dash: str) -> list[tuple[str, list[str], bool]]:
    """Name, cells, whether it is a difference; a line of errors follows each line of scores."""
    first = next(iter(table.models))
    lines = []
    rows = [(name, row, False) for name, row in table.models.items()]
    rows += [(f"{name} {dash} {first}", row, True) for name, row in table.differences.items()]
    for name, row, difference in rows:
        values = [row[key] for key in table.keys]
        sign = "+" if difference else ""
        means = [number.format(f"{v.mean:{sign}.2f}", v.mark * difference) for v in values]
        errors = ["" if v.error is None else error.format(f"{v.error:.2f}") for v in values]
        lines += [(name, means, difference), ("±", errors, difference)]
    return lines


def markdown(table: Table) -> str:
    """A Markdown table with aligned columns, also readable in a terminal."""
    head = ["Model", *(_title(table, key) for key in table.keys)]
    cells = [head, *([name, *texts] for name, texts, _ in _lines(table, "{}{}", "{}", "−"))]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = []
    for name, *texts in cells:
        padded = [name.ljust(widths[0]), *map(str.rjust, texts, widths[1:])]
        lines.append(f"| {' | '.join(padded)} |")
    rule = "|".join(["", "-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:]), ""])
    return "\n".join([lines[0], rule, *lines[1:]]) + "\n"


def latex(table: Table) -> str:
    """In the paper's layout (booktabs); the best value of each column is bold."""
    best = {key: max(row[key].mean for row in table.models.values()) for key in table.keys}
    titles = " & ".join(rf"\textbf{{{_title(table, key)}}}" for key in table.keys)
    columns = f"l|{'c' * len(table.counts)}|c"
    out = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", rf"\textbf{{Model}} & {titles} \\"]
    ruled: bool | None = None
    for name, texts, difference in _lines(table, "{}$^{{{}}}$", r"{{\tiny {}}}", "$-$"):
        if difference != ruled:
            out.append(r"\midrule")
        ruled = difference
        texts = [text.replace("$^{}$", "").replace("-", "$-$") for text in texts]
        if name in table.models:
            row = table.models[name]
            bold = [row[key].mean == best[key] for key in table.keys]
            texts = [rf"\textbf{{{text}}}" if b else text for text, b in zip(texts, bold, strict=True)]
        name = name.replace("_", r"\_").replace("±", r"$\pm$")
        out.append(f"{name} & " + " & ".join(texts) + r" \\")
    return "\n".join([*out, r"\bottomrule", r"\end{tabular}"]) + "\n"


def values_csv(table: Table, metrics: Mapping[str, str], shots: Mapping[str, int]) -> str:
    """One line per score: metric, shots, items, error, and the difference to the first model."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = "model benchmark metric shots items score error difference difference_error mark"
    writer.writerow(head.split())
    for model, row in table.models.items():
        for key in table.keys:
            value, change = row[key], table.differences.get(model, {}).get(key)
            fields = [model, key, metrics.get(key, ""), shots.get(key, ""), table.counts.get(key, "")]
            fields += [_number(value.mean), _number(value.error)]
            fields += [_number(change.mean), _number(change.error), change.mark] if change else [""] * 3
            writer.writerow(fields)
    return text.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"
