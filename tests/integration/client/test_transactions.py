"""Changes in whole transactions, from streams that are written by hand."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import nats
import orjson

from tailrace.client import State, connect, transactions
from tests.integration.client.messages import created, message

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

    from tailrace.client import Batch, Client
    from tailrace.testing import EmbeddedNats


async def sent(url: str, commits: Iterable[tuple[int, int]]) -> None:
    """Changes of commits: `(1, 3)` is a commit at LSN 1 with three of them."""
    connection = await nats.connect(url)
    try:
        for lsn, count in commits:
            for ordinal in range(count):
                content = message(lsn) | {"msg_id": f"{lsn:x}-users-insert-{ordinal}"}
                await connection.jetstream().publish("cdc.users.insert", orjson.dumps(content))
    finally:
        await connection.close()


async def begun(client: Client) -> State:
    """Behind a snapshot that sees transactions before 1."""
    return State(
        table="users",
        snapshot_id="s",
        lsn="0/0",
        visibility="1:1:",
        since=None,
        stream=str(await client.stream_created()),
        sequence=0,
    )


async def read(client: Client, state: State, count: int) -> list[Batch]:
    """Batches with at least so many changes in all."""
    found: list[Batch] = []
    async with asyncio.timeout(30), client.transactions("users", state) as batches:
        while sum(len(batch.changes) for batch in found) < count:
            found.append(await anext(batches))
        if found and not found[-1].ends:
            found.append(await anext(batches))
    return found


def test_batches_hold_whole_transactions(
    server: EmbeddedNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN commits of many sizes WHEN batches are small THEN each ends with a commit, or says that
    it does not, and from each state that is kept it goes on with the next commit."""
    monkeypatch.setattr(transactions, "_ENOUGH", 7)
    commits = [(1, 2), (2, 5), (3, 1300), (4, 1), (5, 3), (6, 9), (7, 1)]
    total = sum(count for _, count in commits)

    async def check() -> None:
        await created(server.url)
        await sent(server.url, commits)
        async with connect(server.url) as client:
            found = await read(client, await begun(client), total)
            changes = [change for batch in found for change in batch.changes]
            assert [int(change.lsn) for change in changes] == [
                lsn for lsn, count in commits for _ in range(count)
            ]
            done: set[int] = set()
            part: set[int] = set()
            for batch in found:
                part |= {int(change.lsn) for change in batch.changes}
                if batch.ends:
                    assert not done & part
                    done, part = done | part, set()
                    rest = await read(client, batch.state, total - _seen(commits, done))
                    left = [int(change.lsn) for each in rest for change in each.changes]
                    assert done.isdisjoint(left)
            assert done == {lsn for lsn, _ in commits}
            assert found[-1].pending == 0
            assert any(not batch.ends for batch in found)

    asyncio.run(check())


def _seen(commits: list[tuple[int, int]], done: set[int]) -> int:
    return sum(count for lsn, count in commits if lsn in done)


def test_the_place_moves_on_over_the_changes_of_others(server: EmbeddedNats) -> None:
    """GIVEN changes that the snapshot has WHEN they are read THEN a state is handed on alone."""

    async def check() -> None:
        await created(server.url)
        await sent(server.url, [(1, 1), (2, 1)])
        async with connect(server.url) as client:
            state = await begun(client)
            seen = replace(state, lsn="0/FF", visibility="100:100:")
            async with asyncio.timeout(30), client.transactions("users", seen) as batches:
                batch = await anext(batches)
            assert (list(batch.changes), batch.state.sequence) == ([], 2)

    asyncio.run(check())
