"""The net effect of changes per key, so that a target writes each row once.

After some changes a row is one of three things: deleted; a complete new row; or a row that was in
the target before, under the same key or another one, with some columns replaced, because PostgreSQL
does not send large (TOASTed) values that an update did not touch. So per key it is enough to know
the new columns, and which row of the target the other columns come from.
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
    """The row of a key: new columns; the others come from the row with the key `base`, if set."""

    columns: dict[str, Any]
    base: Key | None = None


@dataclass(slots=True, kw_only=True)
class Effect:
    """What a target has to do: empty the table, delete keys, update columns, write rows.

    No key is in two of the lists. `moves` are rows that get another key and keep columns that no
    change has sent: the target must read these columns before it writes anything.
    """

    truncated: bool = False
    removed: list[Key] = field(default_factory=list)
    moves: list[tuple[Key, dict[str, Any]]] = field(default_factory=list)
    patches: list[tuple[Key, dict[str, Any]]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)


class NetChanges:
    """Collects changes of a table with a key, in order."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._key_columns = layout.key
        kinds = {column.name: column.kind for column in layout.columns}
        self._unhashable = any(kinds[name] in (Kind.JSON, Kind.FLOAT) for name in layout.key)
        self._truncated = False
        self._rows: dict[Any, tuple[Key, Row | None]] = {}

    def add(self, changes: Iterable[Change]) -> None:
        """Add changes, in order."""
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
                    # Changes before a TRUNCATE have no effect.
                    self._rows.clear()
                case Op.MESSAGE:
                    pass

    def effect(self) -> Effect:
        """The net effect of all changes so far."""
        effect = Effect(truncated=self._truncated)
        for key, row in self._rows.values():
            if row is None:
                # After a TRUNCATE the target has no row to delete.
                if not self._truncated:
                    effect.removed.append(key)
            elif row.base is None:
                effect.rows.append(row.columns)
            elif self._same(row.base, key):
                effect.patches.append((key, row.columns))
            else:
                effect.moves.append((row.base, row.columns))
        return effect

    def _update(self, change: Change) -> None:
        """Add an update.

        | columns        | old key or row | effect                                            |
        |----------------|----------------|---------------------------------------------------|
        | all            | no             | a new row                                         |
        | all            | yes            | the old key is deleted if it differs; a new row   |
        | some unchanged | no             | the row that the key has, with columns replaced   |
        | some unchanged | yes            | the row of the old key, with columns replaced     |
        """
        data, old = change.data, change.old or {}
        if change.unchanged and old:
            # Under REPLICA IDENTITY FULL the old row has the unchanged values; so may an old key.
            data = {name: old[name] for name in change.unchanged if name in old} | data
        partial = len(data) < len(self._layout.columns)
        if not partial and not old:
            self._put(self._key(change, data), Row(data))
            return
        after = self._key(change, data)
        before = self._key(change, {**data, **old}) if old else after
        _, row = self._rows.get(self._hashed(before), (before, Row({}, before)))
        if not self._same(before, after):
            self._put(before, None)
        if not partial:
            self._put(after, Row(data))
            return
        if row is None or (row.base is not None and self._truncated):
            raise DivergedError(
                f"change {change.id} keeps a large value of a row that the mirror does not have",
                hint="Take a new snapshot: tailrace mirror --fresh",
            )
        self._put(after, Row({**row.columns, **data}, row.base))

    def _put(self, key: Key, row: Row | None) -> None:
        self._rows[self._hashed(key)] = key, row

    def _key(self, change: Change, values: Mapping[str, Any]) -> Key:
        key = tuple(values.get(name) for name in self._key_columns)
        if None in key:
            raise DivergedError(
                f"change {change.id} does not have the key columns {', '.join(self._key_columns)}",
                hint="The key of a mirror must be in the table's replica identity. Name other "
                "columns with --key, or run: ALTER TABLE ... REPLICA IDENTITY FULL",
            )
        return key

    def _hashed(self, key: Key) -> Any:
        # NaN is not equal to itself, and JSON objects have no hash: their text has both.
        return repr(key) if self._unhashable else key

    def _same(self, one: Key, other: Key) -> bool:
        return bool(self._hashed(one) == self._hashed(other))
