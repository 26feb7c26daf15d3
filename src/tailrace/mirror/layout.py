"""What a mirrored table looks like: its columns and its key, as the target has them."""

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
    """How values of a column come in a message, and so what is to be done with them."""

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
    """The kind of a PostgreSQL type. What is not known comes as PostgreSQL's text.

    >>> kind_of("bigint"), kind_of("numeric"), kind_of("text[]")
    (<Kind.INTEGER: 'integer'>, <Kind.TEXT: 'text'>, <Kind.TEXT: 'text'>)
    """
    return _KINDS.get(data_type, Kind.TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column. `position` is PostgreSQL's own number of it, which no other column ever has.

    0: the source does not tell. The order of columns is then all there is to go by.
    """

    name: str
    position: int
    data_type: str

    @property
    def kind(self) -> Kind:
        """How its values come."""
        return kind_of(self.data_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A table. Without a key, rows are told apart by all their values."""

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    relation: int | None = None
    """PostgreSQL's number of the table, once a change has told it."""

    @classmethod
    def of(cls, schema: Schema, key: tuple[str, ...]) -> Self:
        """As a schema document has it."""
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
        wanted = frozenset(names)
        return tuple(column for column in self.columns if column.name in wanted)

    def dump(self) -> str:
        """As text."""
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def load(cls, text: str) -> Self:
        """Read what `dump` wrote."""
        try:
            found = orjson.loads(text)
            columns = tuple(Column(**each) for each in found["columns"])
            return cls(columns=columns, key=tuple(found["key"]), relation=found.get("relation"))
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedError(f"a mirror's layout is not understood: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Alteration:
    """What makes one layout of another."""

    dropped: tuple[str, ...] = ()
    retyped: tuple[Column, ...] = ()
    moved: tuple[Column, ...] = ()
    """Of the same name and in another place: dropped and made again."""
    added: tuple[Column, ...] = ()

    @classmethod
    def between(cls, before: Layout, after: Layout) -> Self:
        """By the columns' names.

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
            retyped=tuple(each for each in both if each.data_type != old[each.name].data_type),
            moved=tuple(
                each
                for each, name in zip(both, order, strict=True)
                if each.position != old[each.name].position
                or (not each.position and each.name != name)
            ),
            added=tuple(column for column in after.columns if column.name not in old),
        )
