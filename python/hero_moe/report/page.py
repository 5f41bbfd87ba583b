"""The HTML of reports: plain elements, one inline style sheet, no external resources."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hero_moe.report.figures import LineStyle

CSS = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 1080px; padding: 24px 28px 64px; background: #fff; color: #1a1a1a;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", Arial, sans-serif; }
h1 { font-size: 26px; line-height: 1.2; margin: 8px 0 12px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 40px 0 10px; padding-top: 12px; border-top: 1px solid #ddd; }
p.summary { font-size: 17px; max-width: 60em; margin: 0 0 12px; }
p.warning { background: #fdf0d5; padding: 8px 12px; }
p.note, figcaption { color: #4a4a4a; font-size: 13.5px; max-width: 70em; }
figure { margin: 14px 0 22px; break-inside: avoid; }
figure > svg { display: block; width: 100%; height: auto; }
svg text { font-family: "DejaVu Sans", Verdana, Arial, sans-serif !important; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 4px 0; padding: 0; list-style: none;
  font-size: 13px; }
.legend svg { width: 30px; height: 10px; margin-right: 6px; vertical-align: middle; }
.wide { overflow-x: auto; margin: 8px 0; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 20px 4px 0; border-bottom: 1px solid #e4e4e4; text-align: right; vertical-align: top;
  white-space: nowrap; }
th { font-weight: 600; border-bottom: 1px solid #888; vertical-align: bottom; }
th small { font-weight: 400; color: #5a5a5a; }
th:first-child, td:first-child { text-align: left; }
table.config th, table.config td { text-align: left; max-width: 22em; white-space: normal;
  overflow-wrap: anywhere; }
table.config th:first-child, table.config td:first-child { white-space: nowrap; }
td.best { font-weight: 700; }
td.other { background: #fdf0d5; }
table.config td { font: 12.5px/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
summary { cursor: pointer; margin: 10px 0; }
@media print {
  body { max-width: none; padding: 0; font-size: 11pt; }
  .wide { overflow: visible; }
  table { font-size: 8.5pt; }
  td.other { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
"""


def cell(text: str, css: str = "") -> str:
    """One `<td>`; `text` is plain text."""
    return f'<td class="{css}">{escape(text)}</td>' if css else f"<td>{escape(text)}</td>"


def table(header: Sequence[str | tuple[str, str]], rows: Sequence[Sequence[str]], css: str = "") -> str:
    """A table of plain-text headings, or (heading, small second line), and rows of rendered `<td>` cells."""
    headings = []
    for heading in header:
        title, small = heading if isinstance(heading, tuple) else (heading, "")
        second = f"<br><small>{escape(small)}</small>" if small else ""
        headings.append(f'<th scope="col">{escape(title)}{second}</th>')
    body = "\n".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    opening = f'<table class="{css}">' if css else "<table>"
    return (
        f'<div class="wide">{opening}<thead><tr>{"".join(headings)}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def legend(names: Sequence[str], styles: Sequence[LineStyle]) -> str:
    """A legend with each run's line style and name."""
    items = []
    for name, style in zip(names, styles):
        dashes = (
            f' stroke-dasharray="{" ".join(f"{length * 1.5:g}" for length in style.dashes)}"'
            if style.dashes
            else ""
        )
        line = f'<line x1="0" y1="5" x2="30" y2="5" stroke="{style.color}" stroke-width="2.5"{dashes}/>'
        items.append(f'<li><svg viewBox="0 0 30 10" aria-hidden="true">{line}</svg>{escape(name)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def figure(svg: str, caption: str, key: str = "") -> str:
    """A figure with its plain-text caption and, above it, a rendered legend `key`."""
    return f"<figure>{key}{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def paragraph(text: str, css: str = "note") -> str:
    """A paragraph of plain text."""
    return f'<p class="{css}">{escape(text)}</p>'


def section(title: str, *parts: str) -> str:
    """A titled section of rendered parts."""
    content = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>"


def document(title: str, summary: str, sections: Sequence[str], style: str = "", script: str = "") -> str:
    """The whole page; `title` and `summary` are plain text, `style` and `script` additional CSS and
    JavaScript."""
    content = "\n".join(sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}{style}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{paragraph(summary, 'summary')}\n{content}\n"
        f"{f'<script>{script}</script>' if script else ''}</body>\n</html>\n"
    )
