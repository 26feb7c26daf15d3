"""Target tables of the sink `postgres`: templates filled with names, quoted as SQL needs them."""

from __future__ import annotations

import re

from tailrace.errors import ConfigError
from tailrace.postgres.names import TableName, quote_ident
from tailrace.sinks.destination import Template

_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*")


class TableTemplate(Template):
    """A template such as `{schema}.{table}`.

    >>> from tailrace.change import Op
    >>> TableTemplate("archive.{table}", database="shop").fill("public", "Order Items", Op.INSERT)
    'archive."Order Items"'
    """

    kind = "table"

    @staticmethod
    def token(name: str) -> str:
        """A name, in quotes unless it reads the same without them."""
        return name if _PLAIN.fullmatch(name) else quote_ident(name)


def table_of(destination: bytes) -> TableName | None:
    """The table that a destination names; None if it is not the name of a table.

    >>> str(table_of(b'archive."Order Items"')), table_of(b"a.b.c"), table_of(b"")
    ('archive.Order Items', None, None)
    """
    try:
        return TableName.parse(destination.decode())
    except (ConfigError, UnicodeDecodeError):
        return None
