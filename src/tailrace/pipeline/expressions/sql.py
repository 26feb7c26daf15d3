"""Small pieces of Spark SQL that mean the same under every setting of a session."""

from __future__ import annotations

import re

# Spark puts settings and variables into `${...}` before it parses, even inside a string.
_PLAIN = re.compile(r"[^'\\$\x00-\x1f\x7f-\x9f\ud800-\udfff]*")

# A constant of one of these words, cast to a date or time, is the time of the query's planning.
_CLOCK = re.compile(r"\s*(epoch|now|today|tomorrow|yesterday)\b.*", re.IGNORECASE | re.DOTALL)


def string(value: str) -> str:
    """A string literal.

    How backslashes and quotes are read depends on `escapedStringLiterals` and other settings, so
    anything out of the ordinary is written as bytes.

    >>> string("paid")
    "'paid'"
    >>> string("it's")
    "CAST(X'69742773' AS STRING)"
    """
    if not _PLAIN.fullmatch(value):
        return f"CAST(X'{value.encode().hex()}' AS STRING)"
    if _CLOCK.fullmatch(value):
        # Not a constant any more, so Spark does not give these words their meaning.
        return f"concat('{value}', left(op, 0))"
    return f"'{value}'"


def name(value: str) -> str:
    """A column's name, quoted."""
    return "`" + value.replace("`", "``") + "`"


EVENT_ID = "concat(lpad(lower(hex(lsn)), 16, '0'), '-', CAST(ordinal AS STRING))"
"""The event id of a row of the cells frame."""


def stop(message: str) -> str:
    """Ends the query with a message that names the event."""
    return f"raise_error(concat({string(message + ' (event ')}, {EVENT_ID}, ')'))"
