"""What a mirror does when its table is altered.

The mirror adds and drops columns with the first change that shows them. Everything that changes
rows without an event needs a new snapshot: another type, another name, a default that existing rows
get with a new column, another key, a table that is dropped and created again.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.change import Op
from tailrace.errors import ConfigError
from tailrace.mirror.layout import Alteration, Layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tailrace.client import Change, Schema
    from tailrace.mirror.sources.source import MirrorSource

_POLL_S = 0.3
_FIRST_DOCUMENT_S = 10.0
_DOCUMENT_S = 75.0
"""How long to wait for a schema document: `tailrace run` refreshes them every minute."""
_ALTERED_S = 15.0
"""How long to wait for the document of a table that was just altered, before a new snapshot."""
_WITHOUT_ROW = frozenset({Op.TRUNCATE, Op.MESSAGE})


class TableChanged(Exception):  # noqa: N818 - not an error: the reason for a new snapshot
    """The table was altered in a way that needs a new snapshot."""


class TableSchemas:
    """The schema documents of one table. A key that the user names overrides the document's."""

    def __init__(
        self,
        source: MirrorSource,
        table: str,
        key: Sequence[str] | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._table = table
        self._key = None if key is None else tuple(key)
        self._clock = clock

    async def layout(
        self, names: Iterable[str] | None = None, *, before: Layout | None = None
    ) -> Layout:
        """The layout of the table, after waiting for a document with exactly these columns.

        `before` is the layout of the target: its key is used if the document has no key.
        """
        columns = None if names is None else frozenset(names)
        schema = await self._wait_for(columns, _DOCUMENT_S)
        if columns is not None and columns != frozenset(schema.names):
            raise ConfigError(
                f"the rows of {self._table} have the columns {', '.join(sorted(columns))}, its "
                f"schema document has {', '.join(sorted(schema.names))}",
                hint="Check that `tailrace run` is running: it keeps the documents current. A "
                "pipeline with `select` cannot be mirrored.",
            )
        return self._layout(schema, before)

    async def _wait_for(self, names: frozenset[str] | None, timeout_s: float) -> Schema:
        """The first document with these columns; after the timeout, the newest document.

        A pipeline that has just been added is served before its first document is published.
        """
        started_at = self._clock()
        while True:
            schema = await self._source.schema(self._table)
            limit_s = timeout_s if schema else min(timeout_s, _FIRST_DOCUMENT_S)
            late = self._clock() - started_at > limit_s
            if schema is None and late:
                tables = sorted(await self._source.schemas())
                raise ConfigError(
                    f"there is no schema document of {self._table}",
                    hint=f"Tables with documents: {', '.join(tables) or 'none'}. `tailrace run` "
                    "publishes the documents of pipelines of shape `bridge`.",
                )
            if schema is not None and (late or names in {None, frozenset(schema.names)}):
                return schema
            await asyncio.sleep(_POLL_S)

    def _layout(self, schema: Schema, before: Layout | None) -> Layout:
        key = self._key if self._key is not None else schema.key
        if key is None and before is not None:
            key = before.key
        if key is None:
            raise ConfigError(
                f"the schema document of {self._table} does not name its key",
                hint="Name the columns of its primary key: --key id. Without a key: --no-key",
            )
        if missing := [name for name in key if name not in schema.names]:
            raise ConfigError(
                f"{self._table} has no column {missing[0]}",
                hint=f"Its columns are {', '.join(schema.names)}.",
            )
        return Layout.of(schema, key)

    async def after(self, before: Layout, names: Iterable[str]) -> Layout:
        """The layout for changes with these columns. Raises TableChanged if rows may differ."""
        columns = frozenset(names)
        schema = await self._wait_for(columns, _ALTERED_S)
        if columns != frozenset(schema.names):
            raise TableChanged("the table was altered more than once")
        after = self._layout(schema, before)
        _compare(before, after, schema)
        return replace(after, relation=after.relation or before.relation)

    async def check(self, before: Layout) -> None:
        """Raise TableChanged if the newest document differs in a way that has no event."""
        schema = await self._source.schema(self._table)
        if schema is not None:
            _compare(before, self._layout(schema, before), schema)


def _compare(before: Layout, after: Layout, schema: Schema) -> None:
    """Raise TableChanged if the rows in the target may no longer be right."""
    change = Alteration.between(before, after)
    if None not in (before.relation, after.relation) and before.relation != after.relation:
        raise TableChanged("the table was dropped and created again")
    if before.key != after.key:
        raise TableChanged("the table has another key")
    if change.retyped:
        raise TableChanged(f"column {change.retyped[0].name} has another type")
    if change.moved:
        raise TableChanged(f"column {change.moved[0].name} was dropped and created again")
    # A rename looks like a drop and an addition, and the values stay.
    if change.dropped and change.added:
        raise TableChanged(
            f"column {change.dropped[0]} may have been renamed to {change.added[0].name}"
        )
    columns = {column.name: column for column in schema.columns}
    for added in change.added:
        column = columns[added.name]
        # NOT NULL without a default: an identity column, or a default that was dropped since.
        if column.column_default is not None or not column.is_nullable:
            raise TableChanged(f"column {column.name} was added, possibly with a default")


def matching(changes: Sequence[Change], layout: Layout) -> int:
    """How many of the first changes have exactly the columns of a layout."""
    names = frozenset(layout.names)
    for index, change in enumerate(changes):
        if change.op in _WITHOUT_ROW:
            continue
        columns = change.data.keys()
        if columns != names and columns | set(change.unchanged) != names:
            return index
    return len(changes)
