"""The page of an analysis: its sections and summary."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hero_moe.analysis import explorer
from hero_moe.analysis.contents import FORMS, Analysis
from hero_moe.analysis.data_figures import agreement, history_share, routing_paths, utilization
from hero_moe.analysis.drawing import Drawing, Rendered, render
from hero_moe.analysis.loss_figures import loss_drawings
from hero_moe.analysis.removal_figures import removal, removal_loss
from hero_moe.analysis.weight_figures import weight_drawings
from hero_moe.report import page
from hero_moe.report.sections import Comparison, loss_section, plain, short_count

NO_DATA = (
    "Expert utilization, the contribution of the history, predecessor removal and token paths need a forward "
    "pass: run `hero analyze` with `--data`."
)
NO_PAIRS = "No layer has a visible predecessor: there is no history to show."
TWO_FORMS = (
    "Two changes of these weights do not affect the routing probabilities: adding a constant to a column of "
    "a block, and moving a row constant from one block of a layer to another. The signs and magnitudes of "
    "raw weights, used in the paper, depend on both changes; centered weights, without the column and row "
    "means of each block, and the bias of each expert depend on neither."
)


@dataclass(frozen=True)
class Report:
    """The page and the figures, which are also saved as files."""

    html: str
    figures: list[Rendered]


def title_and_summary(analysis: Analysis) -> tuple[str, str]:
    """The page's title, and the model in a few sentences."""
    model, data = analysis.model, analysis.data
    step = "" if model.step is None else f" at step {model.step:,}"
    stages = len(set(model.stages))
    all_seen = model.history == "global" or stages == 1
    reach = "all earlier layers" if all_seen else "the earlier layers of its stage"
    if model.window is not None:
        reach = f"the last {model.window} of {reach}"
    summary = (
        f"{model.folder}{step}: {model.layers} MoE layers{f' in {stages} stages' if stages > 1 else ''}, "
        f"{model.experts} experts, {model.top_k} per token; a router reads {reach}"
        f"{'' if model.scale else ', unscaled'}{'' if model.detach else ', not detached'}. "
        f"{len(analysis.depth_factor)} visible pairs of layers."
    )
    if model.decoder_layer != list(range(model.layers)):
        first, last = model.decoder_layer[0], model.decoder_layer[-1]
        summary += (
            f" In the model folder, layer 1 is decoder layer {first}, layer {model.layers} is decoder layer "
            f"{last}."
        )
    if data is not None:
        summary += (
            f" Data: {', '.join(data.names)}, {short_count(data.tokens)} tokens in sequences of "
            f"{data.sequence}; loss {plain(data.loss, 4)} nats per token"
        )
        if data.baseline is not None and math.isfinite(data.baseline.loss):
            summary += (
                f", {data.baseline.folder} {plain(data.baseline.loss, 4)} (one pair of models: not evidence)"
            )
        summary += "."
    return f"Routing history of {model.folder}", summary + " Layers count from 1, experts from 0."


def build_report(analysis: Analysis, shown: Comparison | None) -> Report:
    """Draws all figures with available data. Call it inside `matplotlib.rc_context(STYLE)`."""
    figures: list[Rendered] = []

    def drawn(*drawings: Drawing | None) -> list[str]:
        made = [render(drawing) for drawing in drawings if drawing is not None]
        figures.extend(made)
        return [one.html for one in made]

    data = analysis.data
    sections = []
    if shown is not None:
        figures.extend(render(drawing) for drawing in loss_drawings(shown))
        sections.append(loss_section(shown))
    if analysis.depth_factor:
        about = page.paragraph(TWO_FORMS, "summary")
        figures_of_weights = drawn(*weight_drawings(analysis))
        sections.append(page.section("History weights", about, explorer.switch(), *figures_of_weights))
        sections.append(explorer.coupling_section(analysis))
    else:
        sections.append(page.section("History weights", page.paragraph(NO_PAIRS)))
    if data is None:
        sections.append(page.section("Forward pass", page.paragraph(NO_DATA)))
    else:
        sections.append(page.section("Expert utilization", *drawn(utilization(analysis, data))))
        if analysis.depth_factor:
            inside = drawn(history_share(analysis, data), agreement(analysis, data))
            without = drawn(
                *(build(analysis, data, form) for build in (removal, removal_loss) for form in FORMS)
            )
            sections.append(page.section("Contribution of the history", *inside))
            sections.append(page.section("Removal of one predecessor", explorer.switch(), *without))
        sections.append(page.section("Token paths", *drawn(routing_paths(analysis, data))))
        sections.append(explorer.token_section(analysis, data))
    title, summary = title_and_summary(analysis)
    sections.append(explorer.embedded_data(analysis))
    html = page.document(title, summary, sections, explorer.style(), explorer.script())
    return Report(html, figures)
