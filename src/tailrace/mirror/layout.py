"""The columns and the key of a mirrored table, as the target has them."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

import orjson

from tailrace.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.client import Schema


class Kind(enum.Enum):
    """How a message represents the values of a column, which decides how targets convert them."""

    BOOL = "bool"
    INTEGER = "integer"
    FLOAT = "float"
    BYTES = "bytes"
    JSON = "json"
    TEXT = "text"


_KINDS = {
    "boolean": Kind.BOOL,
    "smallint": Kind.INTEGER,
    "integer": Kind.INTEGER,
    "bigint": Kind.INTEGER,
    "oid": Kind.INTEGER,
    "real": Kind.FLOAT,
    "double precision": Kind.FLOAT,
    "bytea": Kind.BYTES,
    "json": Kind.JSON,
    "jsonb": Kind.JSON,
}


def kind_of(data_type: str) -> Kind:
    """The kind of a PostgreSQL type. Messages have all other types as PostgreSQL's text.

    >>> kind_of("bigint"), kind_of("numeric"), kind_of("text[]")
    (<Kind.INTEGER: 'integer'>, <Kind.TEXT: 'text'>, <Kind.TEXT: 'text'>)
    """
    return _KINDS.get(data_type, Kind.TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column. `position` is PostgreSQL's attribute number, which is never reused in a table.

    0: the source does not send it. Then only the order of the columns is known.
    """

    name: str
    position: int
    data_type: str

    @property
    def kind(self) -> Kind:
        """How messages represent its values."""
        return kind_of(self.data_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A table. Without a key, all values together identify a row."""

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    relation: int | None = None
    """OID of the table; None until a change has it."""

    @classmethod
    def of(cls, schema: Schema, key: tuple[str, ...]) -> Self:
        """The layout of a schema document, with this key."""
        columns = tuple(
            Column(
                name=column.name,
                position=column.position,
                data_type=column.data_type,
            )
            for column in schema.columns
        )
        return cls(columns=columns, key=key, relation=schema.relation)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(column.name for column in self.columns)

    def only(self, names: Iterable[str]) -> tuple[Column, ...]:
        """These columns, in the table's order."""
        selected = frozenset(names)
        return tuple(column for column in self.columns if column.name in selected)

    def dump(self) -> str:
        """The layout as JSON text."""
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def load(cls, text: str) -> Self:
        """Read the text that `dump` wrote."""
        try:
            content = orjson.loads(text)
            columns = tuple(Column(**column) for column in content["columns"])
            return cls(columns=columns, key=tuple(content["key"]), relation=content.get("relation"))
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedError(f"the layout of a mirror is invalid: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Alteration:
    """The differences between two layouts."""

    dropped: tuple[str, ...] = ()
    retyped: tuple[Column, ...] = ()
    moved: tuple[Column, ...] = ()
    """Same name and another position: dropped and created again."""
    added: tuple[Column, ...] = ()

    @classmethod
    def between(cls, before: Layout, after: Layout) -> Self:
        """Compare two layouts by the names of their columns.

        >>> a = Column(name="a", position=1, data_type="text")
        >>> b = Column(name="b", position=2, data_type="text")
        >>> one, other = Layout(columns=(a,), key=()), Layout(columns=(a, b), key=())
        >>> Alteration.between(other, one).dropped, Alteration.between(one, one).added
        (('b',), ())
        """
        old = {column.name: column for column in before.columns}
        new = {column.name: column for column in after.columns}
        both = [column for column in after.columns if column.name in old]
        order = [name for name in old if name in new]
        return cls(
            dropped=tuple(name for name in old if name not in new),
            retyped=tuple(
                column for column in both if column.data_type != old[column.name].data_type
            ),
            moved=tuple(
                column
                for column, name in zip(both, order, strict=True)
                if column.position != old[column.name].position
                or (not column.position and column.name != name)
            ),
            added=tuple(column for column in after.columns if column.name not in old),
        )
