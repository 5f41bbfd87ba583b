"""Errors that this package reports in one line."""

from __future__ import annotations


class DataError(ValueError):
    """An invalid input file or option: its name, the value found and the value expected."""
