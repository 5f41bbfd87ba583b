"""Figures and a page about the history weights of a router: `python -m hero_moe.analysis OUT [--runs
RUN...]`.

Reads `OUT/analysis.json` and `OUT/analysis.safetensors` (described in docs/analysis.md) and writes
`OUT/figures/NAME.png`, `OUT/figures/NAME.svg` and `OUT/report.html`, which needs no network and no other
files.
"""
