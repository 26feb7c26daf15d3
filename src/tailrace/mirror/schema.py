"""What a mirror does when its table changes.

Columns that are added or removed are so in the target, with the first change that has them. What
changes rows without any event has to be read anew: another type, another name, a default that rows
get when their column is added, another key, a table that is dropped and made again.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.change import Op
from tailrace.errors import ConfigError
from tailrace.mirror.layout import Alteration, Layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tailrace.client import Change, Schema
    from tailrace.mirror.sources.source import MirrorSource

_LOOK_S = 0.3
_PATIENCE_S = 75.0
"""Documents are made anew every minute, at the latest."""
_SOON_S = 15.0


class Changed(Exception):  # noqa: N818 - not an error: a reason to begin anew
    """The table is not what the target has a copy of."""


class Schemas:
    """The schema documents of one table. A key that is given counts more than theirs."""

    def __init__(self, source: MirrorSource, table: str, key: Sequence[str] | None) -> None:
        self._source = source
        self._table = table
        self._key = None if key is None else tuple(key)

    async def layout(
        self, names: Iterable[str] | None = None, *, before: Layout | None = None
    ) -> Layout:
        """The table as its document has it, once that has exactly these columns.

        `before` is what the target has: a document that does not tell the key leaves it as it was.
        """
        wanted = None if names is None else frozenset(names)
        schema = await self._found(wanted, _PATIENCE_S)
        if wanted is not None and wanted != frozenset(schema.names):
            raise ConfigError(
                f"the rows of {self._table} have the columns {', '.join(sorted(wanted))}, and its "
                f"schema document has {', '.join(sorted(schema.names))}",
                hint="`tailrace run` keeps the documents current: check that it runs. A pipeline "
                "with `select` cannot be mirrored.",
            )
        return self._layout(schema, before)

    async def _found(self, names: frozenset[str] | None, patience_s: float) -> Schema:
        """The newest document, or the first one with these columns, if it comes in time."""
        deadline = asyncio.get_running_loop().time() + patience_s
        while True:
            schema = await self._source.schema(self._table)
            if schema is None:
                there = sorted(await self._source.schemas())
                raise ConfigError(
                    f"there is no schema document of {self._table}",
                    hint=f"There are {', '.join(there) or 'none'}. `tailrace run` publishes them "
                    "for pipelines of shape `bridge`.",
                )
            if names is None or names == frozenset(schema.names):
                return schema
            if asyncio.get_running_loop().time() > deadline:
                return schema
            await asyncio.sleep(_LOOK_S)

    def _layout(self, schema: Schema, before: Layout | None) -> Layout:
        key = self._key if self._key is not None else schema.key
        if key is None and before is not None:
            key = before.key
        if key is None:
            raise ConfigError(
                f"the schema document of {self._table} does not say what its key is",
                hint="Name the columns of its primary key: --key id. If it has none: --no-key.",
            )
        if missing := [name for name in key if name not in schema.names]:
            raise ConfigError(
                f"{self._table} has no column {missing[0]}",
                hint=f"It has {', '.join(schema.names)}.",
            )
        return Layout.of(schema, key)

    async def after(self, before: Layout, names: Iterable[str]) -> Layout:
        """What to make of the target for changes with these columns."""
        wanted = frozenset(names)
        schema = await self._found(wanted, _SOON_S)
        if wanted != frozenset(schema.names):
            raise Changed("the table has changed more than once")
        after = self._layout(schema, before)
        _compare(before, after, schema)
        return replace(after, relation=after.relation or before.relation)

    async def check(self, before: Layout) -> None:
        """Look for what no event tells."""
        schema = await self._source.schema(self._table)
        if schema is not None:
            _compare(before, self._layout(schema, before), schema)


def _compare(before: Layout, after: Layout, schema: Schema) -> None:
    """Raise if the rows that are there may not be what they were."""
    change = Alteration.between(before, after)
    if None not in (before.relation, after.relation) and before.relation != after.relation:
        raise Changed("the table was made anew")
    if before.key != after.key:
        raise Changed("the table has another key")
    if change.retyped:
        raise Changed(f"column {change.retyped[0].name} has another type")
    if change.moved:
        raise Changed(f"column {change.moved[0].name} was dropped and made again")
    if change.dropped and change.added:
        raise Changed(f"column {change.dropped[0]} may be {change.added[0].name} now")
    columns = {column.name: column for column in schema.columns}
    for added in change.added:
        column = columns[added.name]
        if column.column_default is not None or not column.is_nullable:
            raise Changed(f"column {column.name} was added, and rows may have a default in it")


def unlike(changes: Sequence[Change], layout: Layout) -> int:
    """How many of the first changes have just the columns of a layout."""
    names = frozenset(layout.names)
    for at, change in enumerate(changes):
        if change.op in _WITHOUT_ROW:
            continue
        given = change.data.keys()
        if given != names and given | set(change.unchanged) != names:
            return at
    return len(changes)


_WITHOUT_ROW = frozenset({Op.TRUNCATE, Op.MESSAGE})
