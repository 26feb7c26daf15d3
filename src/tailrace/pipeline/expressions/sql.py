"""Literals, names and errors in Spark SQL, with the same meaning under all session settings."""

from __future__ import annotations

import re

# Spark replaces `${...}` with settings and variables before it parses, even inside a string.
_PLAIN = re.compile(r"[^'\\$\x00-\x1f\x7f-\x9f\ud800-\udfff]*")

# Spark replaces a constant of one of these words, cast to a date or time, with the current time. It
# removes blanks and control characters around it, and a time zone may follow.
_CLOCK = re.compile(
    r"[\x00-\x20]*(epoch|now|today|tomorrow|yesterday)(?![a-z])", re.IGNORECASE | re.ASCII
)


def string(value: str) -> str:
    """A string literal.

    How Spark reads backslashes and quotes depends on `escapedStringLiterals` and other settings, so
    strings with special characters are written as bytes.

    >>> string("paid")
    "'paid'"
    >>> string("it's")
    "CAST(X'69742773' AS STRING)"
    """
    plain = _PLAIN.fullmatch(value)
    literal = f"'{value}'" if plain else f"CAST(X'{value.encode().hex()}' AS STRING)"
    # `op` makes it a non-constant expression, which Spark does not replace.
    return f"concat({literal}, left(op, 0))" if _CLOCK.match(value) else literal


def name(value: str) -> str:
    """The name of a column, quoted."""
    return "`" + value.replace("`", "``") + "`"


EVENT_ID = "concat(lpad(lower(hex(lsn)), 16, '0'), '-', CAST(ordinal AS STRING))"
"""The event id of a row of the cells frame."""


def stop(message: str) -> str:
    """An expression that ends the query with an error; the message names the event."""
    return f"raise_error(concat({string(message + ' (event ')}, {EVENT_ID}, ')'))"
