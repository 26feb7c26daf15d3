"""Destinations of messages: templates filled with names, escaped as each sink needs it.

Each sink has a subclass, which says what a destination is called and how a name is escaped.
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
    """A template. `{table}` includes the schema, unless that is `public` or `{schema}` is used."""

    kind: ClassVar[str]
    """The name of a destination in errors: `subject`, `topic`."""
    joint: ClassVar[str] = "."
    """What is between schema and table in `{table}`."""

    def __init__(self, template: str, *, database: str) -> None:
        self._template = template
        self._database = database
        self._apart = "{schema}" in template
        for name in _PLACE.findall(template):
            if name not in _NAMES:
                raise ConfigError(
                    f"{self.kind} {template!r}: unknown placeholder {{{name}}}",
                    hint="Use {schema}, {table}, {operation} and {database}.",
                )

    @staticmethod
    @abstractmethod
    def token(name: str) -> str:
        """A name, escaped as one part of a destination."""

    def fill(self, schema: str, table: str, op: Op) -> str:
        """The destination of changes of one table."""
        token = self.token
        alone = self._apart or schema == "public"
        values = {
            "schema": token(schema),
            "table": token(table) if alone else f"{token(schema)}{self.joint}{token(table)}",
            "operation": op.value,
            "database": token(self._database),
        }
        return _PLACE.sub(lambda place: values[place[1]], self._template)

    def of(self, relation: Relation, op: Op) -> str:
        """The destination of changes of a relation."""
        return self.fill(relation.namespace, relation.name, op)
