"""Parameters of a request that are not text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST = 2**62
"""Of a number in a store: SQLite has signed integers of 64 bits."""


def number(query: Mapping[str, str], name: str, default: int, most: int = MOST) -> int:
    """A whole number. Raises ParameterError.

    >>> number({"limit": "20"}, "limit", 100, 1000), number({"limit": ""}, "limit", 100, 1000)
    (20, 100)
    """
    text = query.get(name) or str(default)
    # `int` refuses thousands of digits with an error of its own.
    if not (text.isascii() and text.isdecimal()) or len(text) > 20 or int(text) > most:
        raise ParameterError(f"{name} must be a whole number of at most {most}")
    return int(text)
