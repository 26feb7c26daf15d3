"""Where changes of a table go: templates filled with names, each sink's names escaped its own way.

A sink's kind of destination is a subclass: it says what users call it and how a name is written.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from tailrace.change import Op
    from tailrace.schema import Relation

_PLACE = re.compile(r"\{([^{}]*)\}")
_NAMES = ("schema", "table", "operation", "database")


class Template(ABC):
    """`{table}` brings its schema along unless it is `public` or the template names `{schema}`."""

    kind: ClassVar[str]
    """What errors call it."""

    def __init__(self, template: str, *, database: str) -> None:
        self._template = template
        self._database = database
        self._apart = "{schema}" in template
        for name in _PLACE.findall(template):
            if name not in _NAMES:
                raise ConfigError(
                    f"{self.kind} {template!r}: there is no {{{name}}}",
                    hint="Use {schema}, {table}, {operation} and {database}.",
                )

    @staticmethod
    @abstractmethod
    def token(name: str) -> str:
        """A name as one part of a destination."""

    def fill(self, schema: str, table: str, op: Op) -> str:
        """The destination of changes of one table."""
        token = self.token
        alone = self._apart or schema == "public"
        values = {
            "schema": token(schema),
            "table": token(table) if alone else f"{token(schema)}.{token(table)}",
            "operation": op.value,
            "database": token(self._database),
        }
        return _PLACE.sub(lambda place: values[place[1]], self._template)

    def of(self, relation: Relation, op: Op) -> str:
        """The destination of changes of a relation."""
        return self.fill(relation.namespace, relation.name, op)
