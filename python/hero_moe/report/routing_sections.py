"""The report sections on expert load, routing history and throughput."""

from __future__ import annotations

import math

import numpy as np

from hero_moe.report import comparison as numbers
from hero_moe.report import figures, page, routing_figures
from hero_moe.report.run_files import Run
from hero_moe.report.sections import NONE, Comparison, percent, plain, short_count, single_runs_in_short


def _end_of_layers(run: Run, key: str) -> float:
    """Mean over layers and the last tenth of the steps; NaN if the run does not have the series."""
    values = run.metrics.layers.get(key)
    return math.nan if values is None else numbers.end_mean(numbers.layer_mean(values))


def routing_section(shown: Comparison) -> str:
    """Final loads, heat maps of expert shares, busiest expert and entropy over time."""
    parts = [_load_table(shown)]
    mapped = [run for run in shown.runs if numbers.mapped_peak(run) is not None]
    if mapped:
        parts.append(page.figure(routing_figures.expert_figure(mapped), _expert_caption(mapped)))
    else:
        parts.append(page.paragraph("No routing snapshot yet."))
    if any(
        np.isfinite(run.metrics.scalars["max_expert_share"]).any() or "entropy" in run.metrics.layers
        for run in shown.runs
    ):
        parts.append(
            page.figure(figures.load_figure(shown.runs, shown.styles), _load_caption(shown), shown.key())
        )
    return page.section("Expert load", *parts)


def _load_table(shown: Comparison) -> str:
    rows = []
    for run in shown.runs:
        peak, uniform = numbers.peak_load(run), run.uniform_share
        rows.append(
            [
                page.cell(run.name),
                page.cell(percent(peak)),
                page.cell(f"{peak / uniform:.1f}×" if uniform and math.isfinite(peak) else NONE),
                page.cell(plain(_end_of_layers(run, "max_over_mean"), 2)),
                page.cell(plain(_end_of_layers(run, "entropy"), 2)),
            ]
        )
    header: list[str | tuple[str, str]] = [
        "run",
        ("peak expert load", "of all tokens"),
        ("of uniform", "K/E"),
        ("max / mean", "over layers"),
        ("entropy (nats)", "over layers"),
    ]
    note = (
        "Means over the last 10% of the steps. Peak expert load: share of the busiest expert of any layer in "
        "a step."
    )
    return page.table(header, rows) + page.paragraph(" ".join([note, *single_runs_in_short(shown)]))


def _expert_caption(mapped: list[Run]) -> str:
    steps = [run.routing.steps for run in mapped if run.routing]
    taken = sorted({_snapshots_in_words(one) for one in steps})
    text = "Share of all tokens that each expert receives; circles mark the maximum. "
    text += (
        f"Mean over the snapshots in the last 10% of the steps, or the last snapshot: {'; '.join(taken)}. "
    )
    levels = {run.uniform_share for run in mapped if run.uniform_share is not None}
    if len(levels) == 1:
        text += f"Perfect balance is {percent(levels.pop())} for every expert. "
    if any(len(one) == 1 for one in steps):
        text += "One snapshot covers the batch of one step; its maximum varies between steps. "
    return text + "Layers count from 1, experts from 0."


def _snapshots_in_words(steps: list[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]:,}"
    return f"{len(steps)} from step {steps[0]:,} to {steps[-1]:,}"


def _load_caption(shown: Comparison) -> str:
    ends = [(numbers.peak_load(run), run.name) for run in shown.runs]
    ends = sorted(end for end in ends if math.isfinite(end[0]))
    text = "Left: share of all tokens that the busiest expert of any layer receives. "
    text += "Right: entropy of the routing probabilities; higher is more balanced. "
    if len(ends) > 1:
        text += f"Mean over the last 10% of the steps: from {percent(ends[0][0])} ({ends[0][1]}) "
        text += f"to {percent(ends[-1][0])} ({ends[-1][1]})."
    return text.strip()


def history_section(shown: Comparison) -> str:
    """Diagnostics of the routing history; empty if no run has one."""
    keep = [run.has_history for run in shown.runs]
    runs = [run for run in shown.runs if run.has_history]
    if not runs:
        return ""
    styles = [style for style, kept in zip(shown.styles, keep) if kept]
    rows = [
        [
            page.cell(run.name),
            page.cell(plain(_end_of_layers(run, "rho"), 2)),
            page.cell(percent(_end_of_layers(run, "history_variance_share"))),
            page.cell(plain(_end_of_layers(run, "rms_hidden"), 3)),
            page.cell(plain(_end_of_layers(run, "rms_history"), 4)),
        ]
        for run in runs
    ]
    header: list[str | tuple[str, str]] = [
        "run",
        ("rho", "mean"),
        ("history's share", "of logit variance"),
        ("RMS of hidden state", "mean"),
        ("RMS of history", "mean"),
    ]
    parts = [
        page.table(header, rows),
        page.paragraph("Means over layers and over the last 10% of the steps."),
    ]
    caption = (
        "Scale rho of the routing history relative to the hidden state, mean over tokens and over the layers "
        "with visible history."
    )
    parts.append(page.figure(routing_figures.rho_figure(runs, styles), caption, shown.key(keep)))
    shared = [
        run for run in runs if np.isfinite(run.metrics.layers.get("history_variance_share", np.nan)).any()
    ]
    if shared:
        caption = (
            "Share of the router logit variance that comes from the history, per layer over time; light "
            "gray: no visible history."
        )
        if ends := [(*end, run.name) for run in shared if (end := _strongest_layer(run))]:
            value, layer, name = max(ends)
            caption += f" Largest final value: {percent(value)} in layer {layer} of {name}."
        parts.append(page.figure(routing_figures.history_share_figure(shared), caption))
    return page.section("Routing history", *parts)


def _strongest_layer(run: Run) -> tuple[float, int] | None:
    """Largest history share over the last tenth of the steps, and its layer, from 1; None without a value there."""
    values = run.metrics.layers["history_variance_share"]
    means = numbers.layer_mean(values[-numbers.last_tenth(len(values)) :].T)
    if not np.isfinite(means).any():
        return None
    layer = int(np.nanargmax(means))
    return float(means[layer]), layer + 1


def speed_section(shown: Comparison) -> str:
    """Throughput over time, and a table of medians."""
    medians = []
    for run in shown.runs:
        finite = {key: values[np.isfinite(values)] for key, values in run.metrics.scalars.items()}
        medians.append(
            {key: float(np.median(values)) if len(values) else math.nan for key, values in finite.items()}
            | {
                "memory": float(finite["peak_memory_mib"].max())
                if len(finite["peak_memory_mib"])
                else math.nan
            }
        )
    base = medians[shown.runs.index(shown.baseline)]["tokens_per_second"]
    rows = []
    for run, median in zip(shown.runs, medians):
        relative = median["tokens_per_second"] / base if base else math.nan
        rows.append(
            [
                page.cell(run.name),
                page.cell(short_count(median["tokens_per_second"])),
                page.cell(f"{100 * relative:.1f}%" if math.isfinite(relative) else NONE),
                page.cell(f"{median['step_ms']:,.1f}" if math.isfinite(median["step_ms"]) else NONE),
                page.cell(percent(median["mfu"])),
                page.cell(f"{median['memory']:,.0f}" if math.isfinite(median["memory"]) else NONE),
            ]
        )
    header: list[str | tuple[str, str]] = [
        "run",
        ("tokens per second", "median"),
        ("relative to baseline", "median"),
        ("step", "ms, median"),
        ("MFU", "median"),
        ("peak memory", "MiB, maximum"),
    ]
    caption = (
        "Throughput: raw values (thin) and centered mean (thick)."
        if len(shown.runs) <= figures.RAW_RUNS
        else "Throughput."
    )
    known = [
        (median["tokens_per_second"], run.name)
        for run, median in zip(shown.runs, medians)
        if math.isfinite(median["tokens_per_second"])
    ]
    if len(known) > 1:
        caption += f" Highest median: {max(known)[1]}, {short_count(max(known)[0])} tokens per second."
    plot = (
        page.figure(figures.throughput_figure(shown.runs, shown.styles), caption, shown.key())
        if known
        else ""
    )
    note = (
        "The throughput of single runs depends on other load on the machine; `hero bench cost-table` "
        "alternates the models."
    )
    about = page.paragraph(note) if len(shown.runs) > 1 else ""
    return page.section("Speed and memory", page.table(header, rows), about, plot)
