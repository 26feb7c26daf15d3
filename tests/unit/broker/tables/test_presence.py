"""Which groups the table shows: rows are written before an answer, changed and removed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tailrace.broker.membership import Group, Member, State
from tailrace.broker.tables.presence import Presence
from tailrace.errors import PostgresUnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Table:
    """A pool of connections, and the table that their statements change."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[str, int, list[dict[str, str]]]] = {}
        self.locked: list[str] = []
        self.writes = 0
        self.failing = False
        self.removing: asyncio.Event | None = None

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Table]:
        if self.failing:
            raise PostgresUnreachableError("gone")
        yield self

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield

    async def execute(self, query: str, values: Any = ()) -> None:
        if "pg_advisory_xact_lock" in query:
            self.locked.append(values[0])
        elif "INSERT" in query:
            self.writes += 1
            for name, state, generation, members in zip(*values, strict=True):
                self.rows[name] = (state, generation, orjson.loads(members))
        elif "= ANY" in query:
            if self.removing is not None:
                await self.removing.wait()
            for name in values[0]:
                self.rows.pop(name, None)
        elif "DELETE" in query:
            self.rows.clear()


def group(name: str, *members: str) -> Group:
    made = Group(id=name, state=State.STABLE, generation=1)
    for each in members:
        made.members[each] = Member(
            id=each, instance=None, client="c\0", host="h", session_s=1, rebalance_s=1,
            protocol_type="consumer", protocols=(),
        )  # fmt: skip
    return made


def presence_of(table: Table) -> Presence:
    return Presence(table)  # type: ignore[arg-type]


def test_a_group_is_written_once_with_its_lock() -> None:
    async def run() -> None:
        table, one = Table(), group("g", "a")
        presence = presence_of(table)
        await asyncio.gather(*(presence.announce(one) for _ in range(5)))
        assert (table.writes, table.locked) == (1, ["g"])
        member = {"id": "a", "instance": "", "client": "c", "host": "h"}
        assert table.rows == {"g": ("Stable", 1, [member])}
        await presence.update([one])
        assert table.writes == 1

    asyncio.run(run())


@pytest.mark.parametrize("nameless", [group("g"), group("g\0", "a")])
def test_a_group_that_has_no_row(nameless: Group) -> None:
    async def run() -> None:
        table = Table()
        await presence_of(table).announce(nameless)
        assert not table.rows

    asyncio.run(run())


def test_changes_and_ends_are_written() -> None:
    async def run() -> None:
        table, one, two, new = Table(), group("g", "a"), group("h", "b"), group("n", "c")
        presence = presence_of(table)
        await presence.announce(one)
        await presence.announce(two)
        one.state, one.generation = State.JOINING, 2
        two.members.clear()
        await presence.update([one, two, new])
        assert {name: row[:2] for name, row in table.rows.items()} == {
            "g": ("PreparingRebalance", 2)
        }
        await presence.update([])
        assert not table.rows

    asyncio.run(run())


def test_a_member_that_joins_while_the_row_is_removed_writes_it_again() -> None:
    async def run() -> None:
        table, one = Table(), group("g", "a")
        presence = presence_of(table)
        await presence.announce(one)
        table.removing = asyncio.Event()
        removal = asyncio.create_task(presence.update([]))
        await asyncio.sleep(0)
        joining = asyncio.create_task(presence.announce(group("g", "b")))
        await asyncio.sleep(0)
        assert not joining.done()
        table.removing.set()
        await asyncio.gather(removal, joining)
        assert [each["id"] for each in table.rows["g"][2]] == ["b"]

    asyncio.run(run())


def test_what_fails_is_repeated() -> None:
    async def run() -> None:
        table, one = Table(), group("g", "a")
        presence = presence_of(table)
        await presence.announce(one)
        table.failing = True
        with pytest.raises(PostgresUnreachableError):
            await presence.update([])
        with pytest.raises(PostgresUnreachableError):
            await presence.announce(one)
        table.failing = False
        await presence.update([])
        assert not table.rows
        await presence.announce(one)
        assert "g" in table.rows

    asyncio.run(run())


def test_a_new_lock_begins_with_an_empty_table() -> None:
    async def run() -> None:
        table, one = Table(), group("g", "a")
        presence = presence_of(table)
        await presence.announce(one)
        await presence.clear(table)  # type: ignore[arg-type]
        assert not table.rows
        await presence.announce(one)
        assert "g" in table.rows

    asyncio.run(run())
