"""Destinations of messages: templates filled with names, escaped as each sink needs it.

Each sink has a subclass, which says what a destination is called and how a name is escaped.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from tailrace.change import Op
    from tailrace.schema import Relation

_PLACE = re.compile(r"\{([^{}]*)\}")
_NAMES = ("schema", "table", "operation", "database")
_DIGEST = 40

LATEST_STATE = "SET "
"""What the template of a sink begins with that keeps the latest state of each row."""
DELETE = "DEL "
"""What the destination of a message begins with that deletes its row. No name contains a blank."""


def escaped(name: str, special: re.Pattern[str], *, mark: str = "-x", digits: str = "02X") -> str:
    """A name with each byte of its special letters written as the mark and two digits.

    No two names are escaped alike if a mark in a name is special itself. An empty name is the mark
    alone, which no other name becomes.
    """

    def hexed(match: re.Match[str]) -> str:
        return "".join(f"{mark}{byte:{digits}}" for byte in match[0].encode())

    return special.sub(hexed, name) if name else mark


def fitted(name: str, longest: int, *, mark: str = "-x") -> str:
    """A name of at most so many characters: a longer one is cut, with a digest of all of it."""
    if len(name) <= longest:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
    return f"{name[: longest - _DIGEST - len(mark) - 1]}{mark}-{digest}"


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


class StateTemplate(Template):
    """A template for sinks that may keep the latest state of each row.

    Such a sink is told by the destination whether a message deletes its row: messages have no
    column for the operation. A `route` of the pipeline can name such destinations as well.
    """

    def __init__(self, template: str, *, database: str) -> None:
        super().__init__(template.removeprefix(LATEST_STATE), database=database)
        self._latest_state = template.startswith(LATEST_STATE)

    def fill(self, schema: str, table: str, op: Op) -> str:
        """The destination of changes of one table."""
        deletes = self._latest_state and op.value == "delete"
        return (DELETE if deletes else "") + super().fill(schema, table, op)
