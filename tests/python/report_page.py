"""A page of `hero report`, parsed."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Checks element nesting and collects attributes, table rows and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data

    def row(self, first: str, table: int = 0) -> list[str]:
        """The `table`-th row whose first cell is `first`."""
        return [row for row in self.rows if row and row[0] == first][table]
