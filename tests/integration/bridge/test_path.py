"""`tailrace bridge` end to end: rows inserted in PostgreSQL arrive at a NATS consumer."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import msgspec
import nats
import pytest

from tailrace.testing import EmbeddedNats
from tests import http
from tests.integration.bridge.process import AUTHORIZATION, PASSWORD, Bridge, login, reader
from tests.jetstream import received
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database

TABLE = """
CREATE TABLE test_types (
    id serial PRIMARY KEY, uid uuid, age int, temperature float8, price numeric(10, 4),
    is_true bool, some_text text, tags text[], matrix int[], metadata jsonb,
    created_at timestamptz
)
"""
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
METADATA = {"key_1": "value_1", "key_2": [[1, 2], [3, 4]], "key_3": {"key_4": None}}
ROW = """
INSERT INTO test_types VALUES (
    12, 'f4b0611f-7258-47f8-bceb-0eba9ac5195a', 30, 36.6, 123.45, true, 'Sample text',
    ARRAY['tag1', 'tag2'], '{{1,2},{3,4}}', %s, '2025-12-12 12:00:34.338547+00'
)
"""
DATA = {
    "id": 12,
    "uid": "f4b0611f-7258-47f8-bceb-0eba9ac5195a",
    "age": 30,
    "temperature": 36.6,
    "price": "123.4500",
    "is_true": True,
    "some_text": "Sample text",
    "tags": "{tag1,tag2}",
    "matrix": "{{1,2},{3,4}}",
    "metadata": METADATA,
    "created_at": "2025-12-12T12:00:34.338547Z",
}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedNats]:
    with EmbeddedNats(config=AUTHORIZATION) as started:
        yield started


@pytest.fixture
def bridge(
    request: pytest.FixtureRequest, tmp_path: Path, database: Database, server: EmbeddedNats
) -> Iterator[Bridge]:
    """What a DBA does, and then the bridge."""
    database.execute(TABLE)
    database.execute("CREATE PUBLICATION my_pub FOR TABLE test_types")
    database.execute(f"CREATE USER {reader(database)} WITH REPLICATION PASSWORD '{PASSWORD}'")
    started = Bridge(tmp_path, database, server, *request.param).start()
    try:
        started.wait_until(lambda: started.status().get("is_connected"), "the bridge connects")
        yield started
    finally:
        started.stop(90)
        database.execute(f"DROP OWNED BY {reader(database)}")
        database.execute(f"DROP USER {reader(database)}")


@pytest.mark.parametrize("bridge", [()], indirect=True)
def test_rows_arrive_as_messagepack(bridge: Bridge) -> None:
    """GIVEN a bridge WHEN rows change THEN a consumer finds each once, typed, in the stream CDC."""
    database = bridge.database
    the_streams_exist_before_the_first_change(bridge)
    with database.connect() as connection:
        connection.execute(ROW, (json.dumps(METADATA),))
        connection.execute("UPDATE test_types SET age = 31, is_true = false, price = 122.9905")
        connection.execute("DELETE FROM test_types")
    found = bridge.received(3)
    assert [message.subject for message in found] == [
        "cdc.test_types.insert",
        "cdc.test_types.update",
        "cdc.test_types.delete",
    ]
    inserted, updated, deleted = (message.msgpack for message in found)
    assert inserted["data"] == DATA
    assert updated["data"] == DATA | {"age": 31, "is_true": False, "price": "122.9905"}
    assert deleted["data"] == dict.fromkeys(DATA) | {"id": 12}
    [(oid,)] = database.query("SELECT 'test_types'::regclass::oid::int8")
    for message, operation in zip(found, ("INSERT", "UPDATE", "DELETE"), strict=True):
        content = message.msgpack
        assert content["operation"] == operation
        assert content["subject"] == message.subject
        assert content["table"] == "test_types"
        assert content["relation_id"] == oid
        assert content["msg_id"] == message.id
        assert re.fullmatch(rf"[0-9a-f]+-test_types-{operation.lower()}-0", message.id)
    many_rows_of_one_statement_have_ids_of_their_own(bridge)
    the_bucket_describes_the_table(bridge)
    the_endpoints_answer(bridge)
    the_rows_come_on_request(bridge)
    shutdown_ends_it(bridge)


def the_streams_exist_before_the_first_change(bridge: Bridge) -> None:
    for name, days in (("CDC", 1), ("INIT", 7)):

        def found(name: str = name) -> dict[str, Any]:
            answer = bridge.get(f"/streams/info?stream={name}")
            content: dict[str, Any] = answer.json() if answer and answer.is_success else {}
            return content

        bridge.wait_until(found, f"stream {name} exists")
        stream = found()
        assert stream["state"]["messages"] == 0
        assert stream["config"]["max_age"] == days * 24 * 3600 * 10**9


def many_rows_of_one_statement_have_ids_of_their_own(bridge: Bridge) -> None:
    bridge.database.execute("INSERT INTO test_types (age) SELECT generate_series(1, 1000)")
    found = bridge.received(1003)
    assert [message.msgpack["data"]["age"] for message in found[3:]] == list(range(1, 1001))
    assert len({message.id for message in found}) == 1003


def the_bucket_describes_the_table(bridge: Bridge) -> None:
    document = msgspec.msgpack.decode(bridge.document("test_types"))
    assert document["table"] == "test_types"
    assert document["schema"] == "public.test_types"
    assert document["timestamp"] > 0
    assert [column["name"] for column in document["columns"]] == list(DATA)
    assert document["columns"][0] == {
        "name": "id",
        "position": 1,
        "data_type": "integer",
        "is_nullable": False,
        "column_default": "nextval('test_types_id_seq'::regclass)",
    }


def the_rows_come_on_request(bridge: Bridge) -> None:
    refused = bridge.snapshot("test_types")
    assert refused["code"] == "REFUSED"
    assert "permission denied" in refused["error"]
    bridge.database.execute(f"GRANT SELECT ON test_types TO {reader(bridge.database)}")
    meta = bridge.snapshot("test_types")
    assert (meta["row_count"], meta["batch_count"]) == (1000, 1)
    chunks = [
        message.msgpack
        for message in received(bridge.consumer, "INIT")
        if f".{meta['snapshot_id']}." in message.subject
    ]
    assert sorted(row["age"] for chunk in chunks for row in chunk["data"]) == list(range(1, 1001))


def the_endpoints_answer(bridge: Bridge) -> None:
    health = bridge.get("/health")
    assert health is not None
    assert (health.status_code, health.json()) == (200, {"status": "ok"})
    wait_for(lambda: bridge.status()["cdc_events_published"] == 1003)
    wait_for(lambda: bridge.status()["is_connected"])
    wait_for(lambda: bridge.status()["wal_messages_received"] >= 1003)
    # A status file that is a few seconds old counts as disconnected.
    status = wait_for(lambda: (now := bridge.status())["status"] == "connected" and now)
    assert (status["reconnect_count"], status["nats_reconnect_count"]) == (0, 0)
    assert re.fullmatch(r"[0-9a-f]+/[0-9a-f]+", status["current_lsn"])
    for name in ("uptime_seconds", "last_processing_time_us", "wal_lag_bytes", "wal_lag_mb"):
        assert status[name] >= 0
    metrics = bridge.get("/metrics")
    assert metrics is not None
    assert "bridge_cdc_events_published_total 1003" in metrics.text
    stream = bridge.get("/streams/info?stream=CDC")
    assert stream is not None
    assert stream.json()["config"]["subjects"] == ["cdc.>"]
    assert stream.json()["state"]["messages"] == 1003


def shutdown_ends_it(bridge: Bridge) -> None:
    token = http.authorization(bridge.folder / "tailrace-data" / bridge.slot)
    assert http.post(f"{bridge.url}/shutdown", headers=token).status_code == 202
    assert bridge.wait() == 0, bridge.output[-3000:]
    sql = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    wait_for(lambda: bridge.database.query(sql, bridge.slot) == [(False,)], "the slot is free")
    assert "canary" not in bridge.output
    the_summary_is_logged(bridge)


def the_summary_is_logged(bridge: Bridge) -> None:
    lines = [line for line in bridge.output.splitlines() if '"run.summary"' in line]
    [summary] = map(json.loads, lines)
    assert (summary["reason"], summary["exit_code"]) == ("SIGTERM", 0)
    assert (summary["captured_changes"], summary["delivered_changes"]) == (1003, 1003)
    assert (summary["snapshots"], summary["snapshot_rows"]) == (1, 1000)
    assert summary["snapshots_failed"] == 1
    assert any("permission denied" in error for error in summary["errors"])
    assert (summary["reconnects"], summary["sink_reconnects"], summary["restarts"]) == (0, 0, {})
    assert summary["delivered_bytes"] > 0
    assert summary["run_time_s"] > 0
    sql = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
    expected = [(summary["last_lsn"],)]
    wait_for(lambda: bridge.database.query(sql, bridge.slot) == expected, "the slot has moved")


@pytest.fixture
def empty(server: EmbeddedNats) -> None:
    async def clear() -> None:
        client = await nats.connect(login(server))
        for stream in await client.jetstream(timeout=60).streams_info():
            await client.jetstream(timeout=60).delete_stream(stream.config.name or "")
        await client.close()

    asyncio.run(clear())


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize("bridge", [("--json", "--data", "here")], indirect=True)
def test_rows_arrive_as_json(bridge: Bridge) -> None:
    bridge.database.execute(ROW, json.dumps(METADATA))
    [message] = bridge.received(1)
    assert message.subject == "cdc.test_types.insert"
    assert message.json["data"] == DATA
    assert message.json["operation"] == "INSERT"
    document = msgspec.json.decode(bridge.document("test_types"))
    assert document["table"] == "test_types"
    assert (bridge.folder / "here" / "log").is_dir()
    assert bridge.stop(LONG_S) == 0, bridge.output[-3000:]
