"""The page of an analysis: which figures and numbers stand where."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hero_moe.analysis import explorer
from hero_moe.analysis.contents import FORMS, Analysis
from hero_moe.analysis.data_figures import agreement, history_share, routing_paths, utilisation
from hero_moe.analysis.drawing import Drawing, Rendered, render
from hero_moe.analysis.loss_figures import loss_drawings
from hero_moe.analysis.removal_figures import removal, removal_loss
from hero_moe.analysis.weight_figures import weight_drawings
from hero_moe.report import page
from hero_moe.report.sections import Comparison, loss_section, plain, short_count

NO_DATA = (
    "Expert utilisation, what the history contributes, the removal of predecessors and the paths of tokens "
    "need a "
    "forward pass: give `hero analyze` some `--data`."
)
NO_PAIRS = "No layer sees another one's routing: there is no history to show."
TWO_FORMS = (
    "Two changes of these weights leave every routing probability as it is: adding a constant to a column of a block, "
    "and moving a constant of a row from one block of a layer to another. Raw weights are the paper's, and their signs "
    "and magnitudes depend on both changes; centered weights, without the means of each block's columns and rows, "
    "and the bias of each expert depend on neither."
)


@dataclass(frozen=True)
class Report:
    """The page and the figures that stand in files of their own."""

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
        reach = f"at most {model.window} of {reach}"
    summary = (
        f"{model.folder}{step}: {model.layers} MoE layers{f' in {stages} stages' if stages > 1 else ''}, "
        f"{model.experts} experts, {model.top_k} per token; a router reads {reach}"
        f"{'' if model.scale else ', unscaled'}{'' if model.detach else ', not detached'}. "
        f"{len(analysis.depth_factor)} pairs of layers see each other."
    )
    if model.decoder_layer != list(range(model.layers)):
        first, last = model.decoder_layer[0], model.decoder_layer[-1]
        summary += f" Layer 1 is decoder layer {first} of the model folder, layer {model.layers} is {last}."
    if data is not None:
        summary += (
            f" Data: {', '.join(data.names)}, {short_count(data.tokens)} tokens in sequences of "
            f"{data.sequence}; "
            f"loss {plain(data.loss, 4)} nats per token"
        )
        if data.baseline is not None and math.isfinite(data.baseline.loss):
            summary += (
                f", {data.baseline.folder} {plain(data.baseline.loss, 4)} (one pair of models: not evidence)"
            )
        summary += "."
    return f"Routing history of {model.folder}", summary + " Layers count from 1, experts from 0."


def build_report(analysis: Analysis, shown: Comparison | None) -> Report:
    """Draws everything there is something for. Call it inside `matplotlib.rc_context(STYLE)`."""
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
        sections.append(page.section("Weights of the history", about, explorer.switch(), *figures_of_weights))
        sections.append(explorer.coupling_section(analysis))
    else:
        sections.append(page.section("Weights of the history", page.paragraph(NO_PAIRS)))
    if data is None:
        sections.append(page.section("Forward pass", page.paragraph(NO_DATA)))
    else:
        sections.append(page.section("Expert utilisation", *drawn(utilisation(analysis, data))))
        if analysis.depth_factor:
            inside = drawn(history_share(analysis, data), agreement(analysis, data))
            without = drawn(
                *(build(analysis, data, form) for build in (removal, removal_loss) for form in FORMS)
            )
            sections.append(page.section("What the history contributes", *inside))
            sections.append(page.section("Without one predecessor", explorer.switch(), *without))
        sections.append(page.section("Paths of tokens", *drawn(routing_paths(analysis, data))))
        sections.append(explorer.token_section(analysis, data))
    title, summary = title_and_summary(analysis)
    sections.append(explorer.embedded_data(analysis))
    html = page.document(title, summary, sections, explorer.style(), explorer.script())
    return Report(html, figures)
