"""The interactive part of the page: its HTML, and the data that its script reads.

Blocks are embedded centered, as int8 times one scale per block: 127 steps are the block's largest magnitude,
so the error of a displayed weight is at most half a step. The row and column means that restore raw weights
are 32-bit floats. Experts of tokens are 16-bit integers, their weights 32-bit floats.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

from hero_moe.analysis.contents import FORMS, Analysis, Data, LayerPair
from hero_moe.analysis.data_figures import token_names
from hero_moe.analysis.drawing import stage_spans
from hero_moe.analysis.weight_figures import symmetric_range
from hero_moe.report import page

MAX_BLOCK_CHARACTERS = 11_000_000  # base64 characters of all blocks on a page, including means
MAX_TOKENS = 1024

FORM = """<label>weights <select class="weights"><option value="raw">raw</option>
<option value="centered">centered</option></select></label>"""

CONTROLS = """
<div class="controls">
{form}
<label>target layer <select id="layer"></select></label>
<label>predecessor <select id="from"></select></label>
<label>source expert <input id="source" type="number" min="0" max="{last}" step="1"></label>
<label>target expert <input id="target" type="number" min="0" max="{last}" step="1"></label>
<button id="clear" type="button">Clear</button>
</div>
<p class="note" id="pair-facts" aria-live="polite"></p>
<div class="explorer">
<div><canvas id="dependency" tabindex="0" role="application"
aria-label="Layer dependency; arrow keys move, Enter selects a pair of layers"></canvas>
<p class="readout" id="dependency-readout" aria-live="polite"></p></div>
<div class="wider"><canvas id="coupling" tabindex="0" role="application"
aria-label="Expert coupling; arrow keys move, Enter selects a source and a target expert"></canvas>
<p class="readout" id="coupling-readout" aria-live="polite"></p></div>
<div id="partners"></div>
</div>
"""

TOKENS = """
<div id="tokens" role="group" aria-label="Tokens; left and right arrow keys select a token"></div>
<div class="controls">
<label>layer <select id="at"></select></label>
<label>expert <input id="expert" type="number" min="0" max="{last}" step="1"></label>
</div>
<p id="expert-facts" aria-live="polite"></p>
<p id="token-facts" aria-live="polite"></p>
<div class="explorer">
<div class="wider"><svg id="token-path" aria-hidden="true"></svg></div>
<div class="scroll"><table><thead><tr><th scope="col">layer</th>
<th scope="col" colspan="{chosen}">expert and weight</th></tr></thead><tbody
id="token-table"></tbody></table></div>
</div>
"""


def encoded(values: np.ndarray) -> str:
    """The bytes of `values`, little-endian, as base64."""
    return base64.b64encode(values.astype(values.dtype.newbyteorder("<")).tobytes()).decode("ascii")


def quantized(block: np.ndarray) -> tuple[float, np.ndarray]:
    """A block as a scale and int8 [E, E]; the error is at most half a step."""
    step = float(np.abs(block).max()) / 127
    return step, np.rint(block / (step or 1.0)).astype(np.int8)


def removed_means(raw: np.ndarray, centered: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The means removed by centering, per row [E] and per column [E]: raw = centered + rows + columns."""
    difference = raw.astype(np.float64) - centered
    rows = difference.mean(axis=1)
    return rows, difference.mean(axis=0) - rows.mean()


def embedded_size(experts: int) -> int:
    """Base64 characters of a block and its means."""
    return 4 * (-(-(experts**2) // 3)) + 2 * 4 * (-(-4 * experts // 3))


def embedded_pairs(analysis: Analysis) -> set[LayerPair]:
    """The pairs whose blocks fit on the page: the default pair, then by ascending distance."""
    first = analysis.default_pair
    order = sorted(analysis.depth_factor, key=lambda place: (place != first, place[0] - place[1], place))
    return set(order[: max(1, MAX_BLOCK_CHARACTERS // embedded_size(analysis.model.experts))])


def _pair_entry(analysis: Analysis, place: LayerPair, embedded: bool) -> dict[str, Any]:
    raw, centered = (analysis.coupling[form].blocks[place] for form in FORMS)
    cell = place[0] - 1, place[1] - 1
    entry: dict[str, Any] = {"layer": place[0], "from": place[1], "factor": analysis.depth_factor[place]}
    for form in FORMS:
        coupling = analysis.coupling[form]
        block = coupling.blocks[place]
        entry[form] = {
            "dependency": float(coupling.dependency[cell]),
            "norm": float(np.linalg.norm(block.astype(np.float64))),
            "rank": float(coupling.effective_rank[cell]),
            "limit": symmetric_range(block),
        }
    if embedded:
        step, values = quantized(centered)
        rows, columns = (encoded(means.astype(np.float32)) for means in removed_means(raw, centered))
        entry |= {"step": step, "block": encoded(values), "rows": rows, "columns": columns}
    return entry


def payload(analysis: Analysis) -> dict[str, Any]:
    """The data that the script reads."""
    model, data, embedded = analysis.model, analysis.data, embedded_pairs(analysis)
    spans = stage_spans(model.stages)
    content: dict[str, Any] = {
        "layers": model.layers,
        "experts": model.experts,
        "top_k": model.top_k,
        "stages": spans if len(spans) > 1 else [],
        "default": analysis.default_pair,
        "pairs": [_pair_entry(analysis, place, place in embedded) for place in analysis.depth_factor],
        "bias": analysis.expert_bias.tolist(),
    }
    if data is not None:
        paths = data.paths
        content["share"] = np.round(data.own.share, 6).tolist()
        content["paths"] = {
            "names": token_names(paths)[:MAX_TOKENS],
            "experts": encoded(paths.experts[:, :MAX_TOKENS].astype(np.uint16)),
            "weights": encoded(paths.weights[:, :MAX_TOKENS].astype(np.float32)),
            "most": float(paths.weights.max()) or 1.0,
        }
    return content


def switch() -> str:
    """The selector of raw or centered weights for the whole page."""
    return f'<div class="controls">{FORM}</div>'


def coupling_section(analysis: Analysis) -> str:
    """Shows the coupling of a selected pair of layers and the strongest partners of selected experts."""
    embedded, pairs = len(embedded_pairs(analysis)), len(analysis.depth_factor)
    note = (
        "Click a cell of the dependency matrix, or select layers, to show their coupling; click a cell of "
        "the coupling matrix, or select experts, to show their strongest partners. Arrow keys and Enter "
        "also work. The URL stores your selection. Red: a high probability of the source expert raises the "
        "target expert's logit; blue: lowers it. Blocks are embedded as 8-bit integers with one scale per "
        "block."
    )
    if embedded < pairs:
        note += f" The page contains {embedded} of {pairs} blocks, selected by ascending layer distance."
    return page.section(
        "Explore: expert coupling",
        page.paragraph(note),
        CONTROLS.format(form=FORM, last=analysis.model.experts - 1),
    )


def token_section(analysis: Analysis, data: Data) -> str:
    """Shows the experts of a selected token in every layer and the tokens of a selected expert."""
    shown = min(len(data.paths.ids), MAX_TOKENS)
    numbers = " (shown as ids: no tokenizer was found)" if data.paths.text is None else ""
    note = (
        f"The first {shown} tokens of the data{numbers}. "
        "Select a token to show its experts; select an expert in the table or the figure to mark its tokens."
    )
    model = analysis.model
    html = TOKENS.format(last=model.experts - 1, chosen=model.top_k)
    return page.section("Explore: token paths", page.paragraph(note), html)


def embedded_data(analysis: Analysis) -> str:
    """The element with the data that the script reads."""
    text = json.dumps(payload(analysis), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="analysis-data">{text}</script>'


def style() -> str:
    """The CSS of the interactive part."""
    return Path(__file__).with_name("explorer.css").read_text(encoding="utf-8")


def script() -> str:
    """The JavaScript of the interactive part, in its own block scope."""
    folder = Path(__file__).parent
    parts = [(folder / name).read_text(encoding="utf-8") for name in ("grid.js", "explorer.js")]
    return "{\n" + "".join(parts) + "}\n"
