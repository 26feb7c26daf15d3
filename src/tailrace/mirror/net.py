"""What changes come to: for each key the last word, so that a target does each row once.

A row of the table after some changes is one of three things: gone; a whole new row; or a row that
was in the target before, under the same key or another one, with some columns replaced, because
PostgreSQL does not send large values that an update left alone. So of a key it is enough to know
where its row comes from, if from anywhere, and the columns that are new.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tailrace.change import Op
from tailrace.errors import DivergedError
from tailrace.mirror.layout import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tailrace.client import Change
    from tailrace.mirror.layout import Layout

Key = tuple[Any, ...]


@dataclass(slots=True)
class Row:
    """What a key's row is made of: new columns, over the row that `base` had before, if any."""

    columns: dict[str, Any]
    base: Key | None = None


@dataclass(slots=True, kw_only=True)
class Effect:
    """What a target has to do: empty the table, remove keys, fill in columns, write rows.

    No key is in two of the lists. `moves` are rows that get another key and keep columns that
    nobody has sent: the target reads those before it does anything else.
    """

    truncated: bool = False
    removed: list[Key] = field(default_factory=list)
    moves: list[tuple[Key, dict[str, Any]]] = field(default_factory=list)
    patches: list[tuple[Key, dict[str, Any]]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)


class Net:
    """Changes of a table with a key, one after another."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._names = layout.key
        kinds = {column.name: column.kind for column in layout.columns}
        self._odd = any(kinds[name] in (Kind.JSON, Kind.FLOAT) for name in layout.key)
        self._truncated = False
        self._rows: dict[Any, tuple[Key, Row | None]] = {}

    def add(self, changes: Iterable[Change]) -> None:
        """Take changes in their order."""
        for change in changes:
            match change.op:
                case Op.INSERT | Op.READ:
                    self._put(self._key(change, change.data), Row(change.data))
                case Op.UPDATE:
                    self._update(change)
                case Op.DELETE:
                    self._put(self._key(change, change.data), None)
                case Op.TRUNCATE:
                    self._truncated = True
                    self._rows.clear()
                case Op.MESSAGE:
                    pass

    def effect(self) -> Effect:
        """What they come to."""
        found = Effect(truncated=self._truncated)
        for key, row in self._rows.values():
            if row is None:
                if not self._truncated:
                    found.removed.append(key)
            elif row.base is None:
                found.rows.append(row.columns)
            elif self._same(row.base, key):
                found.patches.append((key, row.columns))
            else:
                found.moves.append((row.base, row.columns))
        return found

    def _update(self, change: Change) -> None:
        data, old = change.data, change.old or {}
        if change.unchanged and old:
            # The old row of REPLICA IDENTITY FULL has large values, and an old key may be one.
            data = {name: old[name] for name in change.unchanged if name in old} | data
        unsaid = len(data) < len(self._layout.columns)
        if not unsaid and not old:
            self._put(self._key(change, data), Row(data))
            return
        after = self._key(change, data)
        before = self._key(change, {**data, **old}) if old else after
        _, row = self._rows.get(self._hashed(before), (before, Row({}, before)))
        if not self._same(before, after):
            self._put(before, None)
        if not unsaid:
            self._put(after, Row(data))
            return
        if row is None or (row.base is not None and self._truncated):
            raise DivergedError(
                f"change {change.id} leaves a large value unsaid, of a row that is not there",
                hint="Start the mirror with --fresh: it takes a new snapshot.",
            )
        self._put(after, Row({**row.columns, **data}, row.base))

    def _put(self, key: Key, row: Row | None) -> None:
        self._rows[self._hashed(key)] = key, row

    def _key(self, change: Change, values: Mapping[str, Any]) -> Key:
        found = tuple(values.get(name) for name in self._names)
        if None in found:
            raise DivergedError(
                f"change {change.id} does not say {', '.join(self._names)} of its row",
                hint="The key of a mirror has to be in the table's replica identity. Name its "
                "columns with --key, or run: ALTER TABLE ... REPLICA IDENTITY FULL",
            )
        return found

    def _hashed(self, key: Key) -> Any:
        # NaN is not itself, and documents have no hash: their text does for both.
        return repr(key) if self._odd else key

    def _same(self, one: Key, other: Key) -> bool:
        return bool(self._hashed(one) == self._hashed(other))
