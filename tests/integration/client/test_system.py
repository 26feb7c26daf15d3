"""A client of a whole system: rows are written to PostgreSQL and copied from NATS."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tailrace.client import Client, Column, Op, State, connect
from tailrace.errors import ConfigError
from tests.integration.client.system import Rows, apply, select_rows, take
from tests.waiting import wait_for

if TYPE_CHECKING:
    from tests.fix_postgres import Database
    from tests.integration.client.system import System

TYPED = """
CREATE TABLE typed (
    id int PRIMARY KEY, b bool, big int8, r float4, d float8, n numeric, t text, raw bytea,
    day date, clock time, at timestamp, atz timestamptz, u uuid, doc jsonb
);
INSERT INTO typed VALUES
    (1, true, 9223372036854775807, 1.5, 36.6, 123.4500, 'né', '\\x00ff', '2024-02-29',
     '12:00:00.5', '2025-12-12 12:00:34.338547', '2025-12-12 12:00:34.338547+00',
     'f4b0611f-7258-47f8-bceb-0eba9ac5195a', '{"a": [1, null]}'),
    (2, false, -1, '-Infinity', 'Infinity', 0, '', '', '0001-01-01', '00:00', '9999-12-31 23:59:59',
     '2000-01-01 00:00:00+05', '00000000-0000-0000-0000-000000000000', '[]'),
    (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
"""


@pytest.mark.parametrize(("encoding", "compression"), [("json", "none"), ("msgpack", "zstd")])
def test_snapshot_and_stream_have_the_types_of_postgres_drivers(
    system: System, encoding: str, compression: str
) -> None:
    """GIVEN a table of many types WHEN it is read by snapshot and by stream THEN rows are equal."""
    system.pipeline["encoding"] = encoding
    system.pipeline["snapshots"]["compression"] = compression
    system.database.execute(TYPED)
    system.database.execute(
        'CREATE SCHEMA sales; CREATE TABLE sales."odd.name" (id int PRIMARY KEY)'
    )
    system.start()

    async def consume(client: Client) -> None:
        schemas = await client.schemas()
        assert sorted(schemas) == ['sales."odd.name"', "typed"]
        assert schemas["typed"].columns[0] == Column(
            name="id", position=1, data_type="integer", is_nullable=False, column_default=None
        )
        snapshot = client.snapshot("typed")
        rows = {row["id"]: row async for row in snapshot}
        assert rows == select_rows(system, "typed")
        assert snapshot.meta is not None
        assert snapshot.meta.row_count == 3
        follow = client.follow("typed", start="earliest")
        inserted = {change.data["id"]: change.data for change in await take(follow, 3)}
        assert inserted == rows
        assert [row async for row in client.snapshot('sales."odd.name"')] == []

    system.consume(consume)


def test_unknown_table_is_refused_with_the_known_ones(system: System) -> None:
    system.database.execute("CREATE TABLE users (id int PRIMARY KEY); INSERT INTO users VALUES (1)")
    system.start()

    async def consume(client: Client) -> None:
        with pytest.raises(ConfigError, match="nowhere") as caught:
            await anext(client.snapshot("nowhere"))
        assert "users" in caught.value.hint

    system.consume(consume)


class Writers:
    """Threads that change a table at random until they are stopped."""

    def __init__(self, database: Database, seed: int) -> None:
        self._database = database
        self._stop = threading.Event()
        self.done = [0, 0, 0]
        self._threads = [
            threading.Thread(target=self._write, args=(number, random.Random(seed + number)))
            for number in range(len(self.done))
        ]
        for thread in self._threads:
            thread.start()

    def _write(self, number: int, randomness: random.Random) -> None:
        with self._database.connect() as connection:
            while not self._stop.is_set():
                try:
                    with connection.transaction():
                        self._transaction(connection, randomness)
                    self.done[number] += 1
                except psycopg.Error:
                    # A duplicate key or a deadlock: PostgreSQL has rolled the transaction back.
                    pass

    def _transaction(self, connection: psycopg.Connection, randomness: random.Random) -> None:
        for _ in range(randomness.randint(1, 4)):
            self._statement(connection, randomness)
        if randomness.random() < 0.2:
            with connection.transaction(force_rollback=True):
                self._statement(connection, randomness)
        if randomness.random() < 0.1:
            raise psycopg.Rollback
        # Keep transactions open for a while, so that snapshots are taken in the middle of some.
        time.sleep(randomness.choice((0, 0, 0.01, 0.05)))

    def _statement(self, connection: psycopg.Connection, randomness: random.Random) -> None:
        key, value = randomness.randint(1, 300), randomness.randint(0, 1 << 30)
        match randomness.randint(0, 9):
            case 0 | 1:
                connection.execute(
                    "INSERT INTO items VALUES (%s, %s, repeat('x', 10)) ON CONFLICT DO NOTHING",
                    (key, value),
                )
            case 2:
                connection.execute("DELETE FROM items WHERE id = %s", (key,))
            case 3:
                moved = randomness.randint(1, 300)
                connection.execute(
                    "UPDATE items SET id = %s, v = v + 1 WHERE id = %s", (moved, key)
                )
            case 4:
                connection.execute(
                    "UPDATE items SET big = repeat(%s, 1000) WHERE id = %s", (str(value), key)
                )
            case _:
                connection.execute("UPDATE items SET v = %s WHERE id = %s", (value, key))

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_replica_under_load_equals_the_table(system: System, seed: int) -> None:
    """GIVEN writers WHEN replicas are taken repeatedly THEN each ends equal to the table."""
    system.database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, v int8, big text);"
        "ALTER TABLE items ALTER big SET STORAGE EXTERNAL;"
        "INSERT INTO items SELECT g, g, repeat('y', 3000) FROM generate_series(1, 300, 2) g"
    )
    system.start()
    writers = Writers(system.database, seed)
    last = threading.Event()
    following = asyncio.Event()

    async def copy(client: Client, *, durable: str | None, enough: int) -> Rows:
        rows: Rows = {}
        changes = 0
        async with client.replica("items", durable=durable) as events:
            async for event in events:
                apply(rows, event)
                await event.ack()
                changes += event.op is not Op.READ
                if changes:
                    following.set()
                if changes == enough:
                    last.set()
                if event.data.get("id") == -1:
                    return rows
        raise AssertionError("it does not end")

    async def hop() -> Rows:
        """Reconnect every few events, and resume from the state."""
        rows: Rows = {}
        state: State | None = None
        while True:
            async with (
                connect(system.server.url) as client,
                client.replica("items", state=state) as events,
            ):
                changes = 0
                while changes < 40:
                    event = await anext(events)
                    apply(rows, event)
                    state = events.state
                    if event.data.get("id") == -1:
                        return rows
                    changes += event.op is not Op.READ

    def end() -> None:
        last.wait(120)
        writers.stop()
        assert min(writers.done) > 10
        system.database.execute("INSERT INTO items VALUES (-1)")

    async def consume(client: Client) -> list[Rows]:
        ending = asyncio.create_task(asyncio.to_thread(end))
        first = asyncio.create_task(copy(client, durable=None, enough=-1))
        hopping = asyncio.create_task(hop())
        await following.wait()
        second = asyncio.create_task(copy(client, durable="copy", enough=300))
        copies = [await first, await second, await hopping]
        await ending
        return copies

    try:
        first, second, hopped = system.consume(consume)
    finally:
        last.set()
        writers.stop()
    assert first == second == hopped == select_rows(system, "items")


def test_change_before_the_snapshot_that_the_snapshot_does_not_see(
    request: pytest.FixtureRequest, system: System
) -> None:
    """P41: the change is in the stream before the snapshot is taken, which does not see it."""
    system.database.execute(
        "CREATE TABLE w (id int PRIMARY KEY, v text); INSERT INTO w VALUES (1, 'old')"
    )
    system.start()
    wait_for(lambda: system.stored() == 1, "the first row arrives")
    request.getfixturevalue("hanging")
    connection = system.database.connect()
    thread = threading.Thread(
        target=lambda: connection.execute("UPDATE w SET v = 'new' WHERE id = 1")
    )
    thread.start()
    try:
        wait_for(lambda: system.stored() == 2, "the update arrives while its commit hangs")
        assert system.database.query("SELECT v FROM w") == [("old",)]

        async def consume(client: Client) -> list[Any]:
            async with client.replica("w") as events:
                return [(event.op, event.data["v"]) for event in await take(events, 2)]

        assert system.consume(consume) == [(Op.READ, "old"), (Op.UPDATE, "new")]
    finally:
        connection.cancel()
        thread.join()
        connection.close()


def test_superseded_snapshot(system: System, caplog: pytest.LogCaptureFixture) -> None:
    """GIVEN half of a snapshot WHEN it is superseded THEN all rows are those of the other one."""
    system.database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, v text);"
        "INSERT INTO items SELECT g, 'v' || g FROM generate_series(1, 1000) g"
    )
    system.cut_after = 1
    system.start()

    def replace() -> None:
        wait_for(lambda: system.waves >= 1, "a wave is published")
        system.stop_service()
        system.forget_snapshots("items")
        system.database.execute("DELETE FROM items WHERE id > 500")
        system.start_service()

    async def consume(client: Client) -> tuple[list[dict[str, Any]], Any]:
        replacing = asyncio.create_task(asyncio.to_thread(replace))
        snapshot = client.snapshot("items")
        rows = [row async for row in snapshot]
        await replacing
        return rows, snapshot.meta

    with caplog.at_level(logging.WARNING, "tailrace.client"):
        rows, meta = system.consume(consume)
    assert sorted(row["id"] for row in rows) == list(range(1, 501))
    assert meta.supersedes is not None
    assert any("snapshot.superseded" in record.getMessage() for record in caplog.records)


def test_toast_keys_truncate_and_a_new_column(system: System) -> None:
    """GIVEN a replica WHEN it is stopped and resumes from its state THEN nothing is missing."""
    system.database.execute(
        "CREATE TABLE users (id int PRIMARY KEY, n numeric, big text);"
        "ALTER TABLE users ALTER big SET STORAGE EXTERNAL;"
        "INSERT INTO users SELECT g, g, repeat('z', 9000) FROM generate_series(1, 3) g"
    )
    system.start()
    rows: Rows = {}

    async def begin(client: Client) -> str:
        async with client.replica("users") as events:
            for event in await take(events, 2):
                apply(rows, event)
            assert events.state is None
            apply(rows, await anext(events))
            assert events.state is not None
            return events.state.dump()

    state = system.consume(begin)
    assert rows == select_rows(system, "users")

    async def update(client: Client) -> str:
        async with client.replica("users", state=State.load(state)) as events:
            system.database.execute("UPDATE users SET n = 1.50 WHERE id = 1")
            event = await anext(events)
            assert (event.op, event.unchanged, event.old) == (Op.UPDATE, ("big",), None)
            assert "big" not in event.data
            apply(rows, event)
            system.database.execute("UPDATE users SET id = 9 WHERE id = 1")
            event = await anext(events)
            assert (event.old, event.data["id"]) == ({"id": 1}, 9)
            apply(rows, event)
            assert events.state is not None
            return events.state.dump()

    state = system.consume(update)
    assert rows == select_rows(system, "users")

    async def extend(client: Client) -> None:
        async with client.replica("users", state=State.load(state)) as events:
            system.database.execute("ALTER TABLE users ADD at timestamptz")
            await asyncio.to_thread(system.publish_schemas)
            system.database.execute("INSERT INTO users VALUES (20, 1, '', '2026-01-01 00:00:00Z')")
            apply(rows, await anext(events))
            assert rows[20] == select_rows(system, "users")[20]
            system.database.execute("TRUNCATE users; INSERT INTO users VALUES (21)")
            for event in await take(events, 2):
                apply(rows, event)

    system.consume(extend)
    assert rows == select_rows(system, "users")


def test_durable_replica_resumes_with_unacknowledged_changes(system: System) -> None:
    system.database.execute(
        "CREATE TABLE users (id int PRIMARY KEY, v int); INSERT INTO users VALUES (1, 0), (2, 0)"
    )
    system.start()

    async def begin(client: Client) -> str:
        async with client.replica("users", durable="mine") as events:
            assert [event.op for event in await take(events, 2)] == [Op.READ, Op.READ]
            system.database.execute("UPDATE users SET v = 1 WHERE id = 1")
            system.database.execute("UPDATE users SET v = 2 WHERE id = 2")
            first, _second = await take(events, 2)
            await first.ack()
            assert events.state is not None
            return events.state.dump()

    state = State.load(system.consume(begin))

    async def resume(client: Client) -> None:
        async with client.replica("users", durable="mine", state=state) as events:
            (event,) = await take(events, 1)
            assert (event.op, event.data) == (Op.UPDATE, {"id": 2, "v": 2})

    system.consume(resume)

    async def start_again(client: Client) -> None:
        async with client.replica("users", durable="mine") as events:
            rows = [(event.op, event.data["v"]) for event in await take(events, 2)]
            assert rows == [(Op.READ, 1), (Op.READ, 2)]
            system.database.execute("UPDATE users SET v = 3 WHERE id = 1")
            assert (await anext(events)).data == {"id": 1, "v": 3}

    system.consume(start_again)
