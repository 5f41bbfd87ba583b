"""The mistakes that this package tells in one line."""

from __future__ import annotations


class DataError(ValueError):
    """A mistake in an input file or an option: names it, what was found and what was expected."""
