"""Names of tables and columns as tokens of subjects, as ids and as keys of buckets.

A name becomes one token of a NATS subject. A character that a token cannot hold, or that has a
meaning in subjects, is written as `%XX` per UTF-8 byte, and so is `%`. No two names share a token.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_-]")
MESSAGES = "_message"
"""The schema of logical messages in subjects; their prefix takes the place of the table."""


@lru_cache(maxsize=65536)
def token(name: str) -> str:
    """A name as one token of a subject.

    >>> token("users"), token("odd.name *"), token("$SYS"), token("")
    ('users', 'odd%2Ename%20%2A', '%24SYS', '%')
    """
    if not name:
        return "%"
    # Subjects that begin with `$` belong to the server.
    return "".join(
        _escape(letter) if _structural(letter) or (letter == "$" and not at) else letter
        for at, letter in enumerate(name)
    )


def _structural(letter: str) -> bool:
    return letter in ".*>%" or letter.isspace() or unicodedata.category(letter) == "Cc"


def _escape(letter: str) -> str:
    return "".join(f"%{byte:02X}" for byte in letter.encode())


def table_path(schema: str, table: str) -> str:
    """`table`, or `schema.table` for schemas other than public."""
    return token(table) if schema == "public" else f"{token(schema)}.{token(table)}"


def table_key(schema: str, table: str) -> str:
    """The key of a table in a bucket. No two tables share a key.

    A key allows few characters, so every other byte is written as `=XX`. `public` is left out, as
    consumers of the bridge expect.

    >>> table_key("public", "users"), table_key("sales", "users")
    ('users', 'sales.users')
    >>> table_key("public", "sales.users")
    'sales=2Eusers'
    """
    name = _key_token(table)
    return name if schema == "public" else f"{_key_token(schema)}.{name}"


def _key_token(name: str) -> str:
    def escape(match: re.Match[str]) -> str:
        return "".join(f"={byte:02X}" for byte in match[0].encode())

    return _NOT_IN_KEYS.sub(escape, name)
