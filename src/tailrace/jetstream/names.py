"""Names in subjects, ids and keys of buckets, escaped.

A name becomes one token of a NATS subject. What a token cannot hold, or what gives it another
meaning, is written as `%XX` for each of its UTF-8 bytes, `%` included, so no two names meet.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_-]")
MESSAGES = "_message"
"""Stands in for the schema of logical messages; the prefix stands in for the table."""


@lru_cache(maxsize=65536)
def token(name: str) -> str:
    """A name as one token of a subject.

    >>> token("users"), token("odd.name *"), token("$SYS"), token("")
    ('users', 'odd%2Ename%20%2A', '%24SYS', '%')
    """
    if not name:
        return "%"
    return "".join(
        _escaped(letter) if _structural(letter) or (letter == "$" and not at) else letter
        for at, letter in enumerate(name)
    )


def _structural(letter: str) -> bool:
    return letter in ".*>%" or letter.isspace() or unicodedata.category(letter) == "Cc"


def _escaped(letter: str) -> str:
    return "".join(f"%{byte:02X}" for byte in letter.encode())


def table_path(schema: str, table: str) -> str:
    """`table`, or `schema.table` outside of the schema public."""
    return token(table) if schema == "public" else f"{token(schema)}.{token(table)}"


def table_key(schema: str, table: str) -> str:
    """The key of a table in a bucket; no two tables share one.

    A key may hold few characters, so every other byte is written as `=XX`. The schema is left out
    for `public`, as consumers of the bridge expect.

    >>> table_key("public", "users"), table_key("sales", "users")
    ('users', 'sales.users')
    >>> table_key("public", "sales.users")
    'sales=2Eusers'
    """
    name = _key_token(table)
    return name if schema == "public" else f"{_key_token(schema)}.{name}"


def _key_token(name: str) -> str:
    def hexed(match: re.Match[str]) -> str:
        return "".join(f"={byte:02X}" for byte in match[0].encode())

    return _NOT_IN_KEYS.sub(hexed, name)
