"""Enrichment: columns of lookups beside the cells of changes.

The task that reads the log looks the keys of a batch of changes up, all at once, before Spark's
expressions run. So a lookup sees the source as it is when the change is read, which may be after
later changes, and a batch that is replayed may see other values. A row is kept for `cache_s`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import ConfigError
from tailrace.pipeline.expressions.lookups import load
from tailrace.postgres.lookup import LookupSession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tailrace.decode.group import Group
    from tailrace.pipeline.expressions.expression import Expressions
    from tailrace.pipeline.expressions.lookups import Lookup
    from tailrace.postgres.lookup import Row

_KEYS = 10_000
"""How many keys a query may have."""


def described(lookups: Iterable[Lookup], dsn: str) -> tuple[Lookup, ...]:
    """Lookups with their columns, as PostgreSQL describes them."""
    found: list[Lookup] = []
    for lookup in lookups:
        session = LookupSession(dsn, timeout_s=lookup.timeout_s)
        try:
            columns = session.describe(lookup.query, name=f"the query of the lookup {lookup.name}")
        finally:
            session.close()
        first = found[-1].first + len(found[-1].columns) if found else 0
        found.append(replace(lookup, columns=columns, first=first))
    return tuple(found)


def with_columns(expressions: Expressions, dsn: str) -> Expressions:
    """Expressions whose lookups know their columns."""
    found = described(expressions.lookups.values(), dsn)
    return replace(expressions, lookups={lookup.name: lookup for lookup in found})


class Enricher:
    """The lookups of a pipeline, with what they have found."""

    def __init__(
        self,
        lookups: Sequence[Lookup],
        sessions: Sequence[LookupSession],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lookups = [
            _Cached(lookup, session, clock)
            for lookup, session in zip(lookups, sessions, strict=True)
        ]

    def columns(self, group: Group) -> list[pa.BinaryArray]:
        """All columns of all lookups for the changes of a group, in their order."""
        return [column for lookup in self._lookups for column in lookup.columns(group)]


@lru_cache(maxsize=8)
def of_pipeline(lookups: str, dsn: str) -> Enricher:
    """The lookups of a pipeline in this process; they keep their connections."""
    known = load(lookups)
    return Enricher(known, [LookupSession(dsn, timeout_s=each.timeout_s) for each in known])


class _Cached:
    """One lookup, with the rows that it has found lately."""

    def __init__(self, lookup: Lookup, session: LookupSession, clock: Callable[[], float]) -> None:
        self._lookup = lookup
        self._session = session
        self._clock = clock
        self._nothing: Row = (None,) * len(lookup.columns)
        self._rows: dict[bytes, tuple[float, Row]] = {}
        """By key: until when it is good, and the row."""

    def columns(self, group: Group) -> list[pa.BinaryArray]:
        keys = _keys(group, self._lookup.key)
        if keys.null_count == len(keys):
            return [pa.nulls(len(group), pa.binary())] * len(self._lookup.columns)
        coded = keys.dictionary_encode()
        rows = self._found(coded.dictionary.to_pylist())
        return [
            pa.array(values, pa.binary()).take(coded.indices) for values in zip(*rows, strict=True)
        ]

    def _found(self, keys: list[bytes]) -> list[Row]:
        """The rows of distinct keys."""
        now, rows = self._clock(), self._rows
        missing = [key for key in keys if key not in rows or rows[key][0] < now]
        for start in range(0, len(missing), _KEYS):
            self._look_up(missing[start : start + _KEYS], until=now + self._lookup.cache_s)
        found = [rows[key][1] for key in keys]
        if len(rows) > self._lookup.cache_rows or not self._lookup.cache_s:
            rows.clear()
        return found

    def _look_up(self, keys: list[bytes], *, until: float) -> None:
        found = self._session.rows(self._lookup.query, keys)
        by_key = {row[0]: row for row in found}
        if len(by_key) < len(found):
            twice = next(row[0] for row in found if by_key[row[0]] is not row)
            raise ConfigError(
                f"the lookup {self._lookup.name} has several rows for the key {_shown(twice)}",
                hint="Its first column must be the key, and the query must return one row for it.",
            )
        if strange := by_key.keys() - set(keys):
            raise ConfigError(
                f"the lookup {self._lookup.name} returned {_shown(strange.pop())}, which is no key "
                "of a change",
                hint="Its first column must be the key, with the type of the changed table's.",
            )
        for key in keys:
            self._rows[key] = (until, by_key.get(key, self._nothing))


def _shown(key: bytes | None) -> str:
    return "NULL" if key is None else repr(key[:100].decode())


def _keys(group: Group, name: str) -> pa.BinaryArray:
    """The values of a column: of the new row, or of the old row of a delete."""
    nothing = pa.nulls(len(group), pa.binary())
    names = [] if group.relation is None else [column.name for column in group.relation.columns]
    if name not in names:
        return nothing
    at = names.index(name)
    old = group.before[at] if group.before is not None else None
    new = group.after[at] if group.after is not None else None
    if new is None:
        return nothing if old is None else old.values
    if new.unchanged is None or old is None:
        return new.values
    return pc.if_else(pa.array(new.unchanged), old.values, new.values)
