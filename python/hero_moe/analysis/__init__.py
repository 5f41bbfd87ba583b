"""What a router learned from its history, as figures and one page: `python -m hero_moe.analysis OUT [--runs
RUN...]`.

Reads `OUT/analysis.json` and `OUT/analysis.safetensors` (docs/analysis.md says what they hold) and writes
`OUT/figures/NAME.png`, `OUT/figures/NAME.svg` and `OUT/report.html`, which needs no network and no other
file.
"""
