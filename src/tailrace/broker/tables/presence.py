"""The groups that have members, as rows of `kafka.groups`: for consoles and commands.

Membership is in the broker's memory. A program that moves the offsets of a group must know whether
it has members, so its row is committed before the first member gets an answer. A reset of offsets
takes the lock of the group first (`GROUP_LOCK`), and so does the broker before it writes a new row:
a member either is visible to the reset, or reads the offsets after it. Later changes of a group,
and its end, are written a moment later.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson

from tailrace.broker.tables.pool import LOCK_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.broker.membership import Group
    from tailrace.broker.tables.pool import Connection, Pool

GROUP_LOCK = "SELECT pg_advisory_xact_lock(hashtext('tailrace broker group'), hashtext(%s))"
"""Until the end of the transaction."""
_CLEAR = "DELETE FROM kafka.groups"
_WRITE = """
INSERT INTO kafka.groups (group_id, state, generation, members)
SELECT * FROM unnest(%s::text[], %s::text[], %s::int[], %s::jsonb[])
ON CONFLICT (group_id) DO UPDATE SET state = excluded.state, generation = excluded.generation,
    members = excluded.members, changed_at = now()
"""
_REMOVE = "DELETE FROM kafka.groups WHERE group_id = ANY (%s)"

Signature = tuple[Any, ...]
"""What is compared to find the groups that have changed."""
_UNKNOWN: Signature = ()


class Presence:
    """Writes the rows of one broker."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._shown: dict[str, Signature] = {}
        """What the table has; `_UNKNOWN` while a row is removed, and if that has failed."""
        self._writing = asyncio.Lock()

    async def clear(self, connection: Connection) -> None:
        """Remove the rows of an earlier broker, when this one has its lock."""
        self.forget()
        await connection.execute(_CLEAR)

    def forget(self) -> None:
        """The lock is lost: the table is no longer this broker's."""
        # Another dictionary: a write that is in progress adds to the old one.
        self._shown = {}

    async def announce(self, group: Group) -> None:
        """Return when the table shows that the group has members."""
        if self._shown.get(group.id) or not _has_row(group):
            return
        async with self._writing:
            if not self._shown.get(group.id):
                await self._write([group])

    async def update(self, groups: Iterable[Group]) -> None:
        """Write what has changed since the last call, and remove groups without members.

        Groups that are not announced yet are left to `announce`.
        """
        async with self._writing:
            present = {group.id: group for group in groups if group.id in self._shown}
            shown = [group for group in present.values() if _has_row(group)]
            gone = self._shown.keys() - {group.id for group in shown}
            changed = [group for group in shown if self._shown[group.id] != _sign(group)]
            if gone:
                await self._remove(list(gone))
            if changed:
                await self._write(changed)

    async def _write(self, groups: list[Group]) -> None:
        shown, signed = self._shown, {group.id: _sign(group) for group in groups}
        rows = [(g.id, g.state.value, g.generation, _members(g)) for g in groups]
        new = sorted(name for name in signed if not shown.get(name))
        async with self._pool.connection() as connection, connection.transaction():
            await connection.execute(LOCK_TIMEOUT)
            for name in new:
                await connection.execute(GROUP_LOCK, (name,))
            await connection.execute(_WRITE, [list(column) for column in zip(*rows, strict=True)])
        shown |= signed

    async def _remove(self, names: list[str]) -> None:
        shown = self._shown
        # First: a member that joins meanwhile waits, and writes the row again.
        shown |= dict.fromkeys(names, _UNKNOWN)
        async with self._pool.connection() as connection:
            await connection.execute(_REMOVE, (names,))
        for name in names:
            shown.pop(name, None)


def _has_row(group: Group) -> bool:
    """PostgreSQL's text cannot hold a NUL: such a group has no offsets either."""
    return bool(group.members) and "\0" not in group.id


def _sign(group: Group) -> Signature:
    return group.state, group.generation, tuple(group.members)


def _members(group: Group) -> str:
    members = []
    for one in group.members.values():
        fields = {"id": one.id, "instance": one.instance, "client": one.client, "host": one.host}
        members.append({name: (text or "").replace("\0", "") for name, text in fields.items()})
    return orjson.dumps(members).decode()
