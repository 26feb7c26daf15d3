"""Names of tables, and names and strings quoted for SQL. Loads no client library."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from tailrace.errors import ConfigError

_PART = r'"(?:[^"]|"")+"|[^".]+'
_NAME = re.compile(rf"(?:({_PART})\.)?({_PART})")


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A table's schema and name, as PostgreSQL stores them."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a name as SQL does: lower case unless quoted, in schema `public` by default.

        >>> TableName.parse('Sales."Order.Items"')
        TableName(namespace='sales', name='Order.Items')
        """
        match = _NAME.fullmatch(text.strip())
        if match is None:
            raise ConfigError(
                f"invalid table name {text!r}",
                hint='Write orders, sales.orders or "Sales"."Order Items", as in SQL.',
            )
        return cls(_folded(match[1] or "public"), _folded(match[2]))

    @property
    def quoted(self) -> str:
        """The name for SQL."""
        return f"{quote_ident(self.namespace)}.{quote_ident(self.name)}"

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"


def _folded(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.lower()


def quote_ident(name: str) -> str:
    """`name` as an SQL identifier.

    >>> quote_ident('odd"name; --')
    '"odd""name; --"'
    """
    if "\0" in name:
        raise ValueError("a PostgreSQL name cannot contain a NUL character")
    return '"' + name.replace('"', '""') + '"'


def quote_literal(value: str) -> str:
    """`value` as an SQL string, for commands without parameters.

    Correct for replication commands, which have no escapes, and for SQL in a pinned session, where
    standard_conforming_strings is on.
    """
    if "\0" in value:
        raise ValueError("a PostgreSQL string cannot contain a NUL character")
    return "'" + value.replace("'", "''") + "'"
