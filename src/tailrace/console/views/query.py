"""Parameters of a page that are not text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


def number(query: Mapping[str, str], name: str, default: int, most: int) -> int:
    """A whole number of the query. Raises ConfigError."""
    text = query.get(name) or str(default)
    if not (text.isascii() and text.isdecimal()) or len(text) > 20 or int(text) > most:
        raise ConfigError(f"{name} must be a whole number of at most {most}")
    return int(text)
