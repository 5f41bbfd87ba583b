"""The interactive part of the page: its HTML, and the data that its script reads.

Blocks are embedded centered, as signed bytes times one step per block: 127 steps are the centered block's largest
magnitude, so that a weight shown is off by at most half a step. The means that make it raw again, one for each row and
each column, are 32-bit floats. Experts of tokens are 16-bit integers, their weights 32-bit floats.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

from hero_moe.analysis.contents import FORMS, Analysis, Data, Place
from hero_moe.analysis.data_figures import token_names
from hero_moe.analysis.drawing import stage_spans
from hero_moe.analysis.weight_figures import symmetric_range
from hero_moe.report import page

MOST_BLOCKS = 11_000_000  # base64 characters of all blocks on a page, with their means
MOST_TOKENS = 1024

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
aria-label="Dependency of layers; arrow keys move, Enter picks a pair of layers"></canvas>
<p class="readout" id="dependency-readout" aria-live="polite"></p></div>
<div class="wider"><canvas id="coupling" tabindex="0" role="application"
aria-label="Coupling of experts; arrow keys move, Enter picks a source and a target expert"></canvas>
<p class="readout" id="coupling-readout" aria-live="polite"></p></div>
<div id="partners"></div>
</div>
"""

TOKENS = """
<div id="tokens" role="group" aria-label="Tokens; left and right arrow keys pick the neighbour"></div>
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


def quantised(block: np.ndarray) -> tuple[float, np.ndarray]:
    """A block as int8 [E, E] times a step; off by at most half a step."""
    step = float(np.abs(block).max()) / 127
    return step, np.rint(block / (step or 1.0)).astype(np.int8)


def removed_means(raw: np.ndarray, centered: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What centering took out, as constants of rows [E] and of columns [E]: raw = centered + rows + columns."""
    difference = raw.astype(np.float64) - centered
    rows = difference.mean(axis=1)
    return rows, difference.mean(axis=0) - rows.mean()


def embedded_size(experts: int) -> int:
    """Base64 characters of a block and its means."""
    return 4 * (-(-(experts**2) // 3)) + 2 * 4 * (-(-4 * experts // 3))


def embedded_pairs(analysis: Analysis) -> set[Place]:
    """The pairs whose blocks fit on the page: the default pair, then the nearest layers first."""
    first = analysis.default_pair
    order = sorted(analysis.depth_factor, key=lambda place: (place != first, place[0] - place[1], place))
    return set(order[: max(1, MOST_BLOCKS // embedded_size(analysis.model.experts))])


def _pair_entry(analysis: Analysis, place: Place, embedded: bool) -> dict[str, Any]:
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
        step, values = quantised(centered)
        rows, columns = (encoded(means.astype(np.float32)) for means in removed_means(raw, centered))
        entry |= {"step": step, "block": encoded(values), "rows": rows, "columns": columns}
    return entry


def payload(analysis: Analysis) -> dict[str, Any]:
    """What the script reads."""
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
            "names": token_names(paths)[:MOST_TOKENS],
            "experts": encoded(paths.experts[:, :MOST_TOKENS].astype(np.uint16)),
            "weights": encoded(paths.weights[:, :MOST_TOKENS].astype(np.float32)),
            "most": float(paths.weights.max()) or 1.0,
        }
    return content


def switch() -> str:
    """Chooses between raw and centered weights, for the whole page."""
    return f'<div class="controls">{FORM}</div>'


def coupling_section(analysis: Analysis) -> str:
    """Pick a pair of layers, see its coupling, pick experts, see their partners."""
    embedded, pairs = len(embedded_pairs(analysis)), len(analysis.depth_factor)
    note = (
        "Click a cell of the dependency matrix, or choose layers, for their coupling; click a cell of the "
        "coupling matrix, or choose experts, for their strongest partners. Arrow keys and Enter do the same. The "
        "URL stores your selection. Red: a likely source expert raises the target expert's logit; blue: it lowers "
        "it. Blocks are embedded as 8-bit integers with one scale per block."
    )
    if embedded < pairs:
        note += f" Of {pairs} blocks the page holds {embedded}, those of the nearest layers first."
    return page.section(
        "Explore: coupling of experts",
        page.paragraph(note),
        CONTROLS.format(form=FORM, last=analysis.model.experts - 1),
    )


def token_section(analysis: Analysis, data: Data) -> str:
    """Pick a token, see its experts in every layer; pick an expert, see its tokens."""
    shown = min(len(data.paths.ids), MOST_TOKENS)
    numbers = " (their numbers: no tokenizer was found)" if data.paths.text is None else ""
    note = (
        f"The first {shown} tokens of the data{numbers}. "
        "Pick a token for its experts; pick an expert in the table or the picture to mark the tokens that go "
        "there."
    )
    model = analysis.model
    html = TOKENS.format(last=model.experts - 1, chosen=model.top_k)
    return page.section("Explore: paths of tokens", page.paragraph(note), html)


def embedded_data(analysis: Analysis) -> str:
    """The element that holds what the script reads."""
    text = json.dumps(payload(analysis), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="analysis-data">{text}</script>'


def style() -> str:
    """The CSS of the interactive part."""
    return Path(__file__).with_name("explorer.css").read_text(encoding="utf-8")


def script() -> str:
    """The JavaScript of the interactive part, in a block of its own."""
    folder = Path(__file__).parent
    parts = [(folder / name).read_text(encoding="utf-8") for name in ("grid.js", "explorer.js")]
    return "{\n" + "".join(parts) + "}\n"
