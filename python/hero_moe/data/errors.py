"""Errors that this package reports in one line."""

from __future__ import annotations


class DataError(ValueError):
    """An invalid input file or option: its name, the value found and the value expected."""


def decode_utf8(content: bytes, where: str) -> str:
    """The text of a file; `where` names it. Raises `DataError` with the byte."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: byte {error.start}: invalid UTF-8") from error
