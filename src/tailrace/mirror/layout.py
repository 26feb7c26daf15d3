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
    """A column. `position` is PostgreSQL's own number of it: it stays when the name changes."""

    name: str
    position: int
    data_type: str
    type: str | None = None
    """With its modifiers, if that is known."""

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
                type=column.type,
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

    renamed: tuple[tuple[str, str], ...] = ()
    dropped: tuple[str, ...] = ()
    retyped: tuple[Column, ...] = ()
    added: tuple[Column, ...] = ()

    @classmethod
    def between(cls, before: Layout, after: Layout) -> Self:
        """By the columns' positions.

        >>> a = Column(name="a", position=1, data_type="text")
        >>> b = Column(name="b", position=1, data_type="text")
        >>> one, other = Layout(columns=(a,), key=()), Layout(columns=(b,), key=())
        >>> Alteration.between(one, other).renamed
        (('a', 'b'),)
        """
        old = {column.position: column for column in before.columns}
        new = {column.position: column for column in after.columns}
        both = old.keys() & new.keys()
        return cls(
            renamed=tuple(
                (old[at].name, new[at].name) for at in sorted(both) if old[at].name != new[at].name
            ),
            dropped=tuple(old[at].name for at in sorted(old.keys() - both)),
            retyped=tuple(
                new[at]
                for at in sorted(both)
                if (old[at].data_type, old[at].type) != (new[at].data_type, new[at].type)
            ),
            added=tuple(new[at] for at in sorted(new.keys() - both)),
        )

    def __bool__(self) -> bool:
        return bool(self.renamed or self.dropped or self.retyped or self.added)
