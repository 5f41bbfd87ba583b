"""Figures of a forward pass: expert utilization, contribution of the history to the logits, token paths.

The first follows the paper's "Expert Routing Dynamics"; the initial share of the history is its eta_R.
"""

from __future__ import annotations

import numpy as np
from matplotlib.ticker import PercentFormatter

from hero_moe.analysis.contents import Analysis, Data, Paths, Utilization
from hero_moe.analysis.drawing import NEUTRAL, Drawing, add_bar, expert_ticks, layer_ticks, level_line
from hero_moe.report.figures import COLORS, GRAY, new_figure, percent_ticks
from hero_moe.report.routing_figures import short_name, show_map
from hero_moe.report.sections import named_baseline

SHOWN_TOKENS = 6
TOKEN_FONTS = ["DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Noto Emoji"]
ORANGE, BLUE, GREEN = COLORS[1], COLORS[0], COLORS[2]


def utilization(analysis: Analysis, data: Data) -> Drawing:
    """Expert shares [layers x experts], baseline and model on one color scale; circles mark the peaks."""
    shown = [data.own] if data.baseline is None else [data.baseline, data.own]
    top = max(float(used.share.max()) for used in shown) or 1.0
    figure, grid = new_figure(float(np.clip(1.4 + 0.11 * analysis.model.layers, 2.8, 4.8)), 1, len(shown))
    for axes, used in zip(grid[0], shown):
        layers, experts = used.share.shape
        image = show_map(axes, used.share, (-0.5, experts - 0.5, layers + 0.5, 0.5), top)
        axes.plot(
            used.peak.expert, used.peak.layer, "o", markersize=9, markerfacecolor="none",
            markeredgecolor=ORANGE, markeredgewidth=1.6, clip_on=False,
        )  # fmt: skip
        name = short_name(used.folder, 34)
        named = name if used is data.own else named_baseline(name)
        axes.set_title(f"{named}\n{peak_words(used)}", loc="left")
        axes.xaxis.set_major_locator(expert_ticks(experts, 8))
        axes.set_xlabel("expert")
        layer_ticks(axes, layers, x=False, y=True)
    grid[0, 0].set_ylabel("layer")
    bar = add_bar(figure, image, grid, "share of all tokens", format=percent_ticks(top), pad=0.03, shrink=1.0)
    if len({used.top_k for used in shown}) == 1:
        chosen = data.own.top_k
        second = bar.ax.secondary_yaxis(
            "left", functions=(lambda v: np.divide(v, chosen), lambda v: np.multiply(v, chosen))
        )
        second.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=int(top / chosen < 0.2)))
        second.set_ylabel(f"share of assignments (K = {chosen})")
        second.spines[:].set_visible(False)
    uniform = analysis.model.top_k / analysis.model.experts
    caption = (
        f"Share of all tokens that each expert receives ({_origin(data)}); divide by K for the share of "
        f"assignments. Perfect balance is {uniform:.2%} for every expert. "
    )
    if data.baseline is not None:
        before, after, change = data.baseline.peak, data.own.peak, data.peak_change_percent
        shares = f"{before.share:.2%} → {after.share:.2%} ({signed_percent(change)})"
        figure.suptitle(f"Peak load {shares}, one pair of models", fontsize=10, x=0.01, ha="left")
        caption += (
            f"The baseline's busiest expert is expert {before.expert} of layer {before.layer} with "
            f"{before.share:.2%} of all tokens; with history it is expert {after.expert} of layer "
            f"{after.layer} with {after.share:.2%}, {abs(change):.1f}% "
            f"{'lower' if change < 0 else 'higher'}. One "
            f"pair of models is not evidence: see `hero study`."
        )
    else:
        peak = data.own.peak
        caption += (
            f"The busiest expert is expert {peak.expert} of layer {peak.layer} with {peak.share:.2%} of all "
            "tokens."
        )
    return Drawing("expert-utilisation", figure, "Share of all tokens per layer and expert", caption)


def peak_words(used: Utilization) -> str:
    """The peak as text for figure titles."""
    return f"peak {used.peak.share:.2%}: layer {used.peak.layer}, expert {used.peak.expert}"


def signed_percent(value: float) -> str:
    """A change in percent with its sign: −31.2%."""
    return f"{'−' if value < 0 else '+'}{abs(value):.1f}%"


def _origin(data: Data) -> str:
    return f"{data.tokens:,} tokens of {', '.join(data.names)}"


def history_share(analysis: Analysis, data: Data) -> Drawing:
    """The history's share of the logit variance in every layer, and eta_R, its share at initialization."""
    figure, grid = new_figure(3.4, width=7.2)
    axes, layers = grid[0, 0], np.arange(1, analysis.model.layers + 1)
    axes.bar(layers, data.variance_share, color=NEUTRAL, width=0.75, label="measured")
    initial = np.where(np.isfinite(data.variance_share), data.initial_variance_share, np.nan)
    if np.isfinite(initial).any():
        axes.plot(layers, initial, "o-", color=ORANGE, markersize=4, label="at initialization, η_R")
    layer_ticks(axes, len(layers))
    axes.set_xlim(0.3, len(layers) + 0.7)
    axes.set_ylim(0, 1.12 * max(0.01, *np.nan_to_num(data.variance_share), *np.nan_to_num(initial)))
    axes.grid(axis="x", visible=False)
    axes.yaxis.set_major_formatter(percent_ticks(axes.get_ylim()[1]))
    axes.set_xlabel("layer")
    axes.set_ylabel("share of logit variance")
    axes.set_title("Contribution of the history to the logits", loc="left")
    axes.legend(frameon=False, ncols=2, loc="upper left", borderaxespad=0.0)
    seen = np.isfinite(data.variance_share)
    more = int((data.variance_share[seen] > initial[seen]).sum())
    caption = "Var(Z_R) / (Var(Z_O) + Var(Z_R)), variances over experts. "
    if seen.any():
        top = int(np.nanargmax(data.variance_share))
        caption += f"Maximum: {data.variance_share[top]:.1%} in layer {top + 1}"
    else:
        caption += "The logits of all experts are equal"
    if np.isfinite(initial).any():
        caption += f"; above the initial value in {more} of {int(seen.sum())} layers"
    return Drawing("history-share", figure, "History's share of logit variance per layer", f"{caption}.")


def agreement(analysis: Analysis, data: Data) -> Drawing:
    """Agreement of the routing with the routing from the hidden state alone and from the history alone."""
    figure, grid = new_figure(3.6, 1, 3)
    without, alone, divergence = grid[0]
    layers = np.arange(1, analysis.model.layers + 1)
    chosen, chance = analysis.model.top_k, data.chance_top_k
    curves = ((f"chosen experts (K = {chosen})", BLUE, "o"), ("top-1 expert", ORANGE, "s"))
    agreed, predicted = (data.agreement_top_k, data.agreement_top_1), (data.alone_top_k, data.alone_top_1)
    for axes, both in ((without, agreed), (alone, predicted)):
        for values, (name, color, mark) in zip(both, curves):
            axes.plot(layers, values, f"{mark}-", color=color, markersize=4, label=name)
        axes.set_ylim(0, 1.04)
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))
    level_line(alone, chance, f"chance {chance:.1%}")
    if chosen > 1:
        alone.axhline(1 / analysis.model.experts, color=ORANGE, linestyle=":", linewidth=0.9)
    without.set_title("Agreement without history", loc="left")
    without.set_ylabel("agreement")
    alone.set_title("Agreement with history alone", loc="left")
    divergence.plot(layers, data.alone_kl, "o-", color=GREEN, markersize=4)
    divergence.set_ylim(bottom=0)
    divergence.set_ylabel("KL (nats)")
    divergence.set_title("KL(Q ‖ softmax(Z_R))", loc="left")
    for axes in grid[0]:
        layer_ticks(axes, len(layers))
        axes.set_xlim(0.5, len(layers) + 0.5)
        axes.set_xlabel("layer")
    handles, names = without.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False)
    least, best = int(np.nanargmin(data.agreement_top_k)), int(np.nanargmax(data.alone_top_k))
    caption = (
        "Left: fraction of the chosen experts that the hidden state alone also selects; minimum in layer "
        f"{least + 1}, {data.agreement_top_k[least]:.1%}. Middle and right: the same for the history alone, "
        "and the KL divergence of its probabilities from the router's. The history predicts best in layer "
        f"{best + 1}: {data.alone_top_k[best]:.1%} of the chosen experts; chance is {chance:.1%} (dotted; "
        "orange: 1/E for top-1)."
    )
    return Drawing("routing-agreement", figure, "Routing with and without history per layer", caption)


def shown_tokens(count: int) -> list[int]:
    """Up to six positions, evenly spaced over `count` tokens."""
    return sorted(set(np.linspace(0, count - 1, min(SHOWN_TOKENS, count)).round().astype(int).tolist()))


def token_names(paths: Paths) -> list[str]:
    """The tokens' texts with visible whitespace; `#7` for token id 7 without text."""
    texts = [""] * len(paths.ids) if paths.text is None else paths.text
    signs = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥"})
    return [text.translate(signs) or f"#{number}" for text, number in zip(texts, paths.ids)]


def routing_paths(analysis: Analysis, data: Data) -> Drawing:
    """The experts of a few tokens by layer: marker areas are weights, the line follows the top-1 expert."""
    paths, model = data.paths, analysis.model
    tokens = shown_tokens(len(paths.ids))
    columns = min(3, len(tokens))
    rows = -(-len(tokens) // columns)
    figure, grid = new_figure(0.6 + 2.3 * rows, rows, columns)
    layers = np.repeat(np.arange(1, model.layers + 1), model.top_k)
    panels, names = list(grid.ravel()), token_names(paths)
    for axes, token in zip(panels, tokens):
        experts, weights = paths.experts[:, token], paths.weights[:, token]
        axes.plot(np.arange(1, model.layers + 1), experts[:, 0], color=GRAY, linewidth=0.9)
        areas = 70 * weights.ravel() / max(weights.max(), 1e-30)
        axes.scatter(layers, experts.ravel(), s=areas, color=BLUE, alpha=0.75, linewidths=0, zorder=3)
        axes.set_title(f"token {token}: {short_name(names[token], 18)}", loc="left", fontfamily=TOKEN_FONTS)
        axes.set_xlim(0.4, model.layers + 0.6)
        axes.set_ylim(-0.04 * model.experts - 0.5, 1.04 * model.experts - 0.5)
        layer_ticks(axes, model.layers)
        axes.yaxis.set_major_locator(expert_ticks(model.experts, 4))
    for unused in panels[len(tokens) :]:
        unused.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("expert")
    for axes in panels[max(0, len(tokens) - columns) : len(tokens)]:
        axes.set_xlabel("layer")
    caption = (
        f"{len(tokens)} of the {len(paths.ids)} tokens in the last section of the page. Marker areas are "
        "proportional to routing weights; the line follows the expert with the highest weight. Experts of "
        "different layers with the same number are unrelated."
    )
    return Drawing("routing-paths", figure, "Experts of single tokens by layer", caption)
