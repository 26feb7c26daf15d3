"""Changes in whole transactions, from streams that the test writes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import nats
import orjson
import pytest

from tailrace.client import State, connect, transactions
from tailrace.errors import DivergedError
from tests.integration.client.messages import create_stream, message
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.client import Batch, Client
    from tailrace.testing import EmbeddedNats


async def publish(url: str, commits: Iterable[tuple[int, int]]) -> None:
    """Publish commits: `(1, 3)` is a commit at LSN 1 with three changes."""
    connection = await nats.connect(url)
    try:
        for lsn, count in commits:
            for ordinal in range(count):
                content = message(lsn) | {"msg_id": f"{lsn:x}-users-insert-{ordinal}"}
                await connection.jetstream(timeout=60).publish(
                    "cdc.users.insert", orjson.dumps(content)
                )
    finally:
        await connection.close()


async def start_state(client: Client) -> State:
    """The state after a snapshot that sees no transactions from 1 on."""
    identity = await client.stream_identity()
    assert identity is not None
    return State(
        table="users",
        snapshot_id="s",
        lsn="0/0",
        visibility="1:1:",
        since=None,
        stream=identity.created,
        sequence=0,
    )


async def claim(url: str, pipeline: str, value: str) -> None:
    """Record a pipeline's claim in the stream, as its sink does after a reset."""
    connection = await nats.connect(url)
    try:
        jetstream = connection.jetstream(timeout=60)
        config = (await jetstream.stream_info("CDC")).config
        metadata = (config.metadata or {}) | {f"tailrace.history.{pipeline}": value}
        await jetstream.update_stream(config, metadata=metadata)
    finally:
        await connection.close()


async def read(client: Client, state: State, count: int) -> list[Batch]:
    """Batches with at least this many changes in total."""
    received: list[Batch] = []
    async with asyncio.timeout(LONG_S), client.transactions("users", state) as batches:
        while sum(len(batch.changes) for batch in received) < count:
            received.append(await anext(batches))
        if received and not received[-1].ends:
            received.append(await anext(batches))
    return received


def test_batches_hold_whole_transactions(
    server: EmbeddedNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN commits of many sizes WHEN batches are small THEN each batch ends with a commit, or has
    `ends` false, and reading resumes with the next commit from the state of each batch."""
    monkeypatch.setattr(transactions, "BATCH_CHANGES", 7)
    commits = [(1, 2), (2, 5), (3, 1300), (4, 1), (5, 3), (6, 9), (7, 1)]
    total = sum(count for _, count in commits)

    async def check() -> None:
        await create_stream(server.url)
        await publish(server.url, commits)
        async with connect(server.url) as client:
            received = await read(client, await start_state(client), total)
            changes = [change for batch in received for change in batch.changes]
            assert [int(change.lsn) for change in changes] == [
                lsn for lsn, count in commits for _ in range(count)
            ]
            done: set[int] = set()
            part: set[int] = set()
            for batch in received:
                part |= {int(change.lsn) for change in batch.changes}
                if batch.ends:
                    assert not done & part
                    done, part = done | part, set()
                    rest = await read(client, batch.state, total - _count_changes(commits, done))
                    left = [int(change.lsn) for later in rest for change in later.changes]
                    assert done.isdisjoint(left)
            assert done == {lsn for lsn, _ in commits}
            assert received[-1].pending == 0
            assert any(not batch.ends for batch in received)

    asyncio.run(check())


def _count_changes(commits: list[tuple[int, int]], done: set[int]) -> int:
    return sum(count for lsn, count in commits if lsn in done)


def test_state_advances_over_changes_that_the_snapshot_contains(server: EmbeddedNats) -> None:
    """GIVEN changes that the snapshot contains WHEN they are read THEN a batch has a state only."""

    async def check() -> None:
        await create_stream(server.url)
        await publish(server.url, [(1, 1), (2, 1)])
        async with connect(server.url) as client:
            state = await start_state(client)
            seen = replace(state, lsn="0/FF", visibility="100:100:")
            async with asyncio.timeout(LONG_S), client.transactions("users", seen) as batches:
                batch = await anext(batches)
            assert (list(batch.changes), batch.state.sequence) == ([], 2)

    asyncio.run(check())


@pytest.mark.parametrize("since_s", [None, -3600, 0])
def test_a_new_copy_has_no_changes_of_an_earlier_history(
    server: EmbeddedNats, since_s: float | None
) -> None:
    """GIVEN a database that was restored: LSNs and transaction ids are used again WHEN a snapshot
    is taken shortly afterwards THEN the changes before the restore are not applied to it."""

    async def run() -> list[int]:
        await create_stream(server.url)
        await publish(server.url, [(7, 1), (8, 1), (9, 1)])
        await claim(server.url, "shop", f"bb+1 3 {int(time.time())} >")
        await publish(server.url, [(8, 2), (9, 1)])
        async with connect(server.url) as client:
            state = replace(await start_state(client), pipeline="shop", history="bb+1")
            if since_s is not None:
                # Within the 30 s by which clocks may differ, or before.
                since = datetime.now(UTC) + timedelta(seconds=since_s)
                state = replace(state, since=since.isoformat())
            batches = await read(client, state, 3)
        return [change.lsn for batch in batches for change in batch.changes]

    assert asyncio.run(run()) == [8, 8, 9]


def test_a_running_replica_notices_another_history(server: EmbeddedNats) -> None:
    """Its snapshot would seem to contain the changes of the new history."""

    async def run() -> None:
        await create_stream(server.url)
        await publish(server.url, [(7, 1)])
        async with connect(server.url) as client:
            state = replace(
                await start_state(client), lsn="0/9", pipeline="shop", history="", visibility="5:5:"
            )
            async with asyncio.timeout(LONG_S):
                replica = client.replica("users", state=state)
                assert (await anext(replica)).lsn == 7
                await claim(server.url, "shop", f"bb+1 1 {int(time.time())} >")
                await asyncio.sleep(1.1)
                await publish(server.url, [(3, 1)])
                with pytest.raises(DivergedError, match="another history"):
                    await anext(replica)

    asyncio.run(run())
