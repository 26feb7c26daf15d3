"""Two `tailrace bridge` processes on one NATS server, each with a table of its own.

They share the streams and the subjects of requests. One of them is killed again and again after it
has stored a batch and before its checkpoint, while the other one publishes.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import nats
import nats.js.api
import pytest

from tailrace.testing import EmbeddedNats
from tests.faults.path import descendants, kill
from tests.integration.bridge.process import AUTHORIZATION, PASSWORD, Bridge, login, reader
from tests.jetstream import received, requested, stored
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ROWS = 5
KILLS = 2
KILLED = re.compile("pipeline.retrying")


@pytest.fixture
def server() -> Iterator[EmbeddedNats]:
    """With a stream that forgets ids at once: only reading back prevents duplicates."""

    async def create() -> None:
        client = await nats.connect(login(started))
        stream = nats.js.api.StreamConfig(name="CDC", subjects=["cdc.>"], duplicate_window=0.1)
        await client.jetstream(timeout=60).add_stream(stream)
        await client.close()

    with EmbeddedNats(config=AUTHORIZATION) as started:
        asyncio.run(create())
        yield started


@pytest.fixture
def bridges(
    tmp_path: Path, database: Database, server: EmbeddedNats
) -> Iterator[dict[str, Bridge]]:
    """A bridge per table. Each worker of the first dies after its third batch is stored."""
    user = reader(database)
    database.execute(f"CREATE USER {user} WITH REPLICATION PASSWORD '{PASSWORD}'")
    failpoints = {"users": {"TAILRACE_FAILPOINTS": "open.after-flush=kill@3"}}
    started: dict[str, Bridge] = {}
    try:
        for table in ("users", "orders"):
            database.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY, note text)")
            database.execute(f"CREATE PUBLICATION my_pub_{table} FOR TABLE {table}")
            database.execute(f"GRANT SELECT ON {table} TO {user}")
            bridge = Bridge(tmp_path, database, server, name=f"_{table}", env=failpoints.get(table))
            started[table] = bridge.start()
        for bridge in started.values():
            wait_for(partial(connected, bridge), bridge.output)
        yield started
    finally:
        for bridge in started.values():
            for pid in descendants(bridge.pid) if bridge.alive else ():
                kill(pid)
            bridge.kill()
        with contextlib.suppress(Exception):
            database.execute(f"DROP OWNED BY {user}; DROP USER {user}")


def connected(bridge: Bridge) -> bool:
    return bool(bridge.status().get("is_connected"))


def test_two_bridges_share_a_server(bridges: dict[str, Bridge], database: Database) -> None:
    """GIVEN two bridges in one stream WHEN one is killed between storing and its checkpoint
    THEN each change is stored once, in order; and requests reach the bridge that has the table."""
    users, url = bridges["users"], bridges["users"].consumer
    inserted = 0

    def killed_often() -> bool:
        nonlocal inserted
        for table in bridges:
            database.execute(f"INSERT INTO {table} SELECT FROM generate_series(1, {ROWS})")
        inserted += ROWS
        return len(KILLED.findall(users.output)) >= KILLS

    users.wait_until(killed_often, "the worker to be killed")
    users.wait_until(lambda: (stored(url, "CDC") or 0) >= 2 * inserted, "all changes", 240)
    found = received(url, "CDC")
    assert not [name for name, count in Counter(each.id for each in found).items() if count > 1]
    for table in bridges:
        own = [each.msgpack for each in found if each.subject == f"cdc.{table}.insert"]
        assert [each["data"]["id"] for each in own] == [*range(1, inserted + 1)]
    assert "nats.resumed" in users.output
    for table in [*bridges] * 2:
        (reply,) = requested(url, [(f"snapshot.request.{table}", b"")], timeout_s=LONG_S)
        answer = msgspec.msgpack.decode(reply.data)
        assert (answer.get("table"), answer.get("error")) == (table, None)
