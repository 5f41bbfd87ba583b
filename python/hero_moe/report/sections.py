"""The sections of the report: tables, figures and captions."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hero_moe.report import comparison as numbers
from hero_moe.report import figures, page
from hero_moe.report.comparison import Difference
from hero_moe.report.figures import LineStyle
from hero_moe.report.run_files import Evaluation, Run

NONE = "–"


@dataclass(frozen=True)
class Comparison:
    """The runs in order, the baseline, and each run's line style and loss difference."""

    runs: list[Run]
    baseline: Run
    styles: list[LineStyle]
    differences: list[Difference | None]

    @classmethod
    def of(cls, runs: list[Run]) -> Comparison:
        """Chooses the baseline and computes the differences (None for the baseline itself)."""
        baseline = numbers.pick_baseline(runs)
        differences = [None if run is baseline else numbers.difference(run, baseline) for run in runs]
        return cls(runs, baseline, figures.line_styles(runs, baseline), differences)

    @property
    def names(self) -> list[str]:
        """The runs' names in legends."""
        return [named_baseline(run.name) if run is self.baseline else run.name for run in self.runs]

    def key(self, keep: Sequence[bool] | None = None) -> str:
        """The legend of all runs, or of those in `keep`; empty for a single run."""
        if len(self.runs) == 1:
            return ""
        kept = [index for index in range(len(self.runs)) if keep is None or keep[index]]
        return page.legend([self.names[index] for index in kept], [self.styles[index] for index in kept])


def named_baseline(name: str) -> str:
    """`baseline`, or `baseline (NAME)` for a run or folder with a different name."""
    return "baseline" if name == "baseline" else f"baseline ({name})"


def plain(value: float, digits: int = 3) -> str:
    """A number with `digits` decimals, or a dash for NaN."""
    return f"{value:.{digits}f}" if math.isfinite(value) else NONE


def signed(value: float) -> str:
    """A loss difference with its sign: three decimals, four below 0.01."""
    if not math.isfinite(value):
        return NONE
    text = f"{abs(value):.{3 if abs(value) >= 0.00995 else 4}f}"
    return f"{'−' if value < 0 else '+'}{text}" if float(text) else "0"


def percent(value: float) -> str:
    """A share in percent: one decimal, two below 1%."""
    return f"{value:.{1 if abs(value) >= 0.01 else 2}%}" if math.isfinite(value) else NONE


def short_count(value: float) -> str:
    """A count with three digits: 950, 61.4k, 1.23M, 4.00B; below 10,000 all digits."""
    if not math.isfinite(value):
        return NONE
    if round(value) < 10_000:
        return f"{value:,.0f}"
    mantissa, exponent = f"{value:.2e}".split("e")
    thousands = min(int(exponent) // 3, 4)
    digits = int(exponent) - 3 * thousands
    return f"{float(mantissa) * 10**digits:.{max(2 - digits, 0)}f}{'kMBT'[thousands - 1]}"


def span(values: Sequence[int], unit: str) -> str:
    """`600 steps`, or `100 to 600 steps` if the values differ."""
    low, high = min(values), max(values)
    if low == high:
        return f"{short_count(low)} {unit}{'' if low == 1 else 's'}"
    return f"{short_count(low)} to {short_count(high)} {unit}s"


def _difference_words(diff: Difference | None) -> str:
    if diff is None:
        return "no common steps"
    if not math.isfinite(diff.end):
        return "difference not finite"
    return signed(diff.end)


def _difference_and_terms(diff: Difference | None) -> str:
    """The difference; if it is not that of the final losses, with the losses that it is the difference of."""
    words = _difference_words(diff)
    if diff is None or diff.all_steps or not math.isfinite(diff.end):
        return words
    return f"at the steps in common {plain(diff.mine)} against {plain(diff.theirs)}: {words}"


def title_and_summary(shown: Comparison) -> tuple[str, str]:
    """The page's title, and the comparison in one sentence."""
    runs, base = shown.runs, shown.baseline
    tokens = span([run.metrics.tokens[-1] for run in runs], "token")
    size = f"{span([run.metrics.steps[-1] for run in runs], 'step')} ({tokens})"
    ends = "mean language-model loss over the last 10% of the steps"
    base_loss = plain(numbers.final_loss(base))
    if len(runs) == 1:
        return (
            f"Run {base.name}",
            f"{base.name} trained for {size} with a final loss of {base_loss} ({ends}).",
        )
    ranked = sorted(
        (item for item in zip(runs, shown.differences) if item[0] is not base),
        key=lambda item: item[1].end if item[1] and math.isfinite(item[1].end) else math.inf,
    )
    listed = ranked if len(ranked) <= 4 else [ranked[0], ranked[-1]]
    words = [
        f"{run.name} {plain(numbers.final_loss(run))} ({_difference_and_terms(diff)})" for run, diff in listed
    ]
    if len(ranked) > 4:
        words = [f"best other run: {words[0]}", f"worst: {words[1]}"]
    title = f"{base.name} and {ranked[0][0].name if len(runs) == 2 else f'{len(ranked)} other runs'}"
    return title, (
        f"{len(runs)} runs of {size}. Final loss ({ends}), with the difference to the baseline in "
        f"parentheses: {named_baseline(base.name)} {base_loss}, {', '.join(words)}."
    )


def single_runs_in_words(shown: Comparison) -> str:
    """A note that differences between single runs are not evidence; empty for one run."""
    if len(shown.runs) < 2:
        return ""
    these = (
        "This is one pair of runs"
        if len(shown.runs) == 2
        else "Every difference here is between two single runs"
    )
    return (
        f"{these}, which is not evidence that one configuration is better: a different seed or machine "
        "changes the difference and often its sign. `hero study` trains every variant with several seeds "
        "and reports confidence intervals."
    )


def single_runs_in_short(shown: Comparison) -> list[str]:
    """A short version for the notes below a table."""
    if len(shown.runs) < 2:
        return []
    these = "One pair of runs is" if len(shown.runs) == 2 else "Differences between single runs are"
    return [f"{these} not evidence: see `hero study`."]


def loss_section(shown: Comparison) -> str:
    """Table of final losses, loss curves and curves of the advantage over the baseline."""
    losses = [numbers.final_loss(run) for run in shown.runs]
    notes = [
        "Losses are language-model losses without auxiliary terms, means over the last 10% of each run's "
        "steps."
    ]
    if len(losses) > 1:
        notes.append("Differences are means over the last 10% of the steps in common with the baseline.")
    notes += [*single_runs_in_short(shown), *_mismatch_notes(shown)]
    behind = "thin: every step; thick: " if len(shown.runs) <= figures.RAW_RUNS else ""
    caption = f"Language-model loss ({behind}centered mean over {figures.SMOOTHED:.0%} of a run's steps)."
    best = _lowest(shown, losses)
    if best is not None:
        caption += f" Lowest final loss: {shown.runs[losses.index(best)].name}, {plain(best)}."
    parts = [
        _loss_table(shown, losses, best),
        page.paragraph(" ".join(notes)),
        page.figure(figures.loss_figure(shown.runs, shown.styles), caption, shown.key()),
    ]
    compared = [diff is not None for diff in shown.differences]
    if any(compared):
        svg = figures.advantage_figure(shown.differences, shown.styles)
        parts.append(page.figure(svg, _advantage_caption(shown), shown.key(compared)))
    return page.section("Loss", *parts)


def _same_length(shown: Comparison) -> bool:
    return len({int(run.metrics.steps[-1]) for run in shown.runs}) == 1


def _lowest(shown: Comparison, losses: Sequence[float]) -> float | None:
    """The lowest final loss if all runs have the same length, else None."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    return min(finite) if len(losses) > 1 and finite and _same_length(shown) else None


def _loss_table(shown: Comparison, losses: Sequence[float], best: float | None) -> str:
    header: list[str | tuple[str, str]] = [
        "run",
        ("final loss", "nats per token"),
        ("averaged", "steps"),
        ("with auxiliary", "terms"),
    ]
    mtp = any(np.isfinite(run.metrics.scalars["mtp_loss"]).any() for run in shown.runs)
    if mtp:
        header.append(("multi-token", "prediction"))
    header += ["last step", "tokens"]
    if len(losses) > 1:
        same = all(diff.all_steps for diff in shown.differences if diff is not None)
        at = "run − baseline" if same else "at common steps"
        header[2:2] = [("difference", at), ("relative", "to baseline")]
    rows = []
    for run, loss, diff in zip(shown.runs, losses, shown.differences):
        row = [
            page.cell(run.name),
            page.cell(plain(loss), "best" if loss == best else ""),
            page.cell(f"{numbers.last_tenth(len(run.metrics.steps)):,}"),
            page.cell(plain(numbers.end_mean(run.metrics.scalars["loss"]))),
            *([page.cell(plain(numbers.end_mean(run.metrics.scalars["mtp_loss"])))] if mtp else []),
            page.cell(f"{run.metrics.steps[-1]:,}"),
            page.cell(short_count(run.metrics.tokens[-1])),
        ]
        if len(losses) > 1:
            relative = diff.relative if diff else math.nan
            sign = "−" if relative < 0 else "+"
            row[2:2] = [
                page.cell("baseline" if run is shown.baseline else _difference_words(diff)),
                page.cell(f"{sign}{abs(relative):.2%}" if math.isfinite(relative) else NONE),
            ]
        rows.append(row)
    return page.table(header, rows)


def _advantage_caption(shown: Comparison) -> str:
    ends = [diff.end for diff in shown.differences if diff is not None]
    ahead = sum(end < 0 for end in ends)
    count = f"{ahead} of {len(ends)} runs" if ahead else "No run"
    beat = "beats" if ahead <= 1 else "beat"
    text = (
        f"Advantage over {shown.baseline.name}: the baseline's loss minus the run's at the same step "
        f"(centered mean over {figures.SMOOTHED_DIFFERENCE:.0%} of the common steps); positive values favor "
        f"the run. {count} {beat} the baseline at the end."
    )
    return " ".join([text, *single_runs_in_short(shown)])


def _mismatch_notes(shown: Comparison) -> list[str]:
    notes = []
    if not _same_length(shown):
        notes.append("The runs differ in length: compare final losses only in the difference column.")
    if branches := [(run.name, run.parent.step) for run in shown.runs if run.parent]:
        listed = ", ".join(f"{name} (after step {step:,})" for name, step in branches)
        notes.append(f"Branches, whose losses begin where they left their parent: {listed}.")
    base = shown.baseline.metrics
    uneven = []
    for run in shown.runs:
        _, mine, theirs = np.intersect1d(
            run.metrics.steps, base.steps, assume_unique=True, return_indices=True
        )
        if (run.metrics.tokens[mine] != base.tokens[theirs]).any():
            uneven.append(run.name)
    if uneven:
        notes.append(
            f"At equal steps, {', '.join(uneven)} had processed a different number of tokens than the "
            "baseline."
        )
    return notes


def evaluation_section(shown: Comparison) -> str:
    """Losses and perplexities of `eval.json`, one column per dataset; empty without any evaluation."""
    names = _dataset_names([entry for run in shown.runs for entry in run.evaluations])
    results = [{names[entry.dataset, entry.digest]: entry for entry in run.evaluations} for run in shown.runs]
    datasets = list(dict.fromkeys(name for result in results for name in result))
    if not datasets:
        return ""
    header: list[Any] = ["run", "step"]
    best = {}
    for name in datasets:
        entries = [result[name] for result in results if name in result]
        best[name] = min((entry.loss for entry in entries if math.isfinite(entry.loss)), default=math.nan)
        tokens = {entry.tokens for entry in entries}
        amount = (
            f"{short_count(tokens.pop() or math.nan)} tokens"
            if len(tokens) == 1
            else "different token counts"
        )
        header.append((name, f"loss (perplexity), {amount}"))
    rows = []
    for run, result in zip(shown.runs, results):
        step = next((f"{entry.step:,}" for entry in result.values() if entry.step is not None), NONE)
        row = [page.cell(run.name), page.cell(step)]
        for name in datasets:
            entry = result.get(name)
            text = f"{plain(entry.loss)} ({_perplexity_text(entry.perplexity)})" if entry else NONE
            row.append(
                page.cell(text, "best" if entry and entry.loss == best[name] and len(results) > 1 else "")
            )
        rows.append(row)
    note = "Loss in nats per token, perplexity in parentheses; the lowest loss of each dataset in bold."
    notes = " ".join([note, *single_runs_in_short(shown)])
    return page.section("Evaluation", page.table(header, rows), page.paragraph(notes))


def _dataset_names(entries: Sequence[Evaluation]) -> dict[tuple[str, str], str]:
    """Names of data sets by name and digest: of those with the same name, preceded by as many folders of their paths
    as tell them apart."""
    paths = {
        (entry.dataset, entry.digest): Path(entry.path or entry.dataset).parts for entry in reversed(entries)
    }
    names = {}
    for key, path in paths.items():
        others = [other for (name, _), other in paths.items() if name == key[0] and other != path]
        count = 1
        while count < len(path) and any(other[-count:] == path[-count:] for other in others):
            count += 1
        names[key] = "/".join(path[-count:]) if count > 1 else key[0]
        if list(names.values()).count(names[key]) > 1:  # other contents at the same path
            names[key] += f" ({sum(one[0] == key[0] for one in names)})"
    return names


def _perplexity_text(value: float) -> str:
    return plain(value, 2) if value < 1000 else short_count(value)


def configuration_section(shown: Comparison) -> str:
    """Configurations side by side: differing keys, then all keys in a collapsed block."""
    names = [run.name for run in shown.runs]
    differing = numbers.differing_keys(shown.runs)
    parts = []
    if differing:
        parts.append(page.table(["key", *names], _config_rows(shown, differing), "config"))
        count = f"{len(differing)} key{' differs' if len(differing) == 1 else 's differ'}"
        parts.append(page.paragraph(f"{count}; values that differ from the baseline are highlighted."))
    elif len(names) > 1:
        parts.append(page.paragraph("All runs have the same configuration."))
    keys = numbers.all_keys(shown.runs)
    whole = page.table(["key", *names], _config_rows(shown, keys), "config")
    parts.append(f"<details><summary>Complete configuration ({len(keys)} keys)</summary>{whole}</details>")
    return page.section("Configuration", *parts)


def _config_rows(shown: Comparison, keys: Sequence[str]) -> list[list[str]]:
    rows = []
    for key in keys:
        values = [_config_text(run.config.get(key)) for run in shown.runs]
        base = _config_text(shown.baseline.config.get(key))
        rows.append(
            [page.cell(key), *(page.cell(value, "other" if value != base else "") for value in values)]
        )
    return rows


def _config_text(value: Any) -> str:
    if value is None:
        return "(not set)"
    return value if isinstance(value, str) and value else json.dumps(value, default=str, ensure_ascii=False)
