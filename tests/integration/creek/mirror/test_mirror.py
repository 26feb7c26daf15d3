"""Mirrors of Creek's tables: a snapshot, and exactly the changes after it."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.client import transactions
from tailrace.encode.creek import schema as creek
from tailrace.errors import ConfigError
from tailrace.schema import Column, ReplicaIdentity
from tests.integration.creek.client.producer import (
    AT,
    DATABASE,
    INT,
    TEXT,
    USERS,
    encode,
    event,
    relation,
)
from tests.integration.creek.mirror.following import Following, RandomTable, mirror
from tests.integration.mirror.reading import places

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tailrace.testing import EmbeddedNats
    from tests.fix_postgres import Database
    from tests.integration.creek.client.producer import Producer
    from tests.integration.mirror.reading import Place

INET = 869
SELECT = "SELECT id, name FROM users ORDER BY id"


@pytest.fixture(params=["sqlite", "duckdb", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path, copy: Database) -> Place:
    [place] = [place for place in places(tmp_path, copy) if place.kind == request.param]
    return place


@pytest.fixture
def light(tmp_path: Path, copy: Database) -> Place:
    """A target for tests where its kind does not matter."""
    return places(tmp_path, copy)[0]


def joined(transactions: Iterable[list[bytes]]) -> list[bytes]:
    return [*chain.from_iterable(transactions)]


def applied(running: Following, count: int) -> None:
    running.wait(lambda: running.status.changes >= count, f"{count} changes")


def test_random_changes_before_and_after_a_snapshot(
    feeding: Producer, place: Place, seed: int
) -> None:
    """GIVEN transactions before, during and after a snapshot WHEN the mirror runs, is stopped and
    resumes THEN it equals the source, and one snapshot was enough."""
    source = RandomTable(USERS, random.Random(seed))
    before = [source.transaction() for _ in range(30)]
    feeding.snapshot(USERS, source.listed(), **source.header())
    after = [source.transaction() for _ in range(60)]
    feeding.wal(USERS, *joined(before + after[:20]))
    late = sum(map(len, after[:20]))
    with mirror(feeding, "users", place.url) as running:
        running.follows()
        applied(running, late)
        feeding.wal(USERS, *joined(after[20:40]))
        applied(running, sum(map(len, after[:40])))
    feeding.wal(USERS, *joined(after[40:]))
    with mirror(feeding, "users", place.url) as running:
        applied(running, sum(map(len, after[40:])))
        assert running.status.snapshots == 0
    assert place.rows(SELECT) == [(row["id"], row["name"]) for row in source.listed()]
    assert len(feeding.requests) == 1


def insert(number: int, *, lsn: int, xid: int) -> bytes:
    return event(USERS, "c", after={"id": number, "name": "x"}, lsn=lsn, xid=xid)


def test_visibility_decides_what_the_snapshot_contains(feeding: Producer, light: Place) -> None:
    """GIVEN commits that became visible in another order than they were logged WHEN the header has
    a visibility THEN the visibility decides, not the LSN."""
    feeding.snapshot(USERS, [{"id": 1, "name": "a"}], lsn="0/5", visibility="20:24:21,22")
    feeding.wal(
        USERS,
        insert(10, lsn=3, xid=21),  # logged before, and not seen
        insert(11, lsn=6, xid=23),  # after the header's LSN, and seen
        insert(12, lsn=7, xid=22),
        insert(13, lsn=8, xid=24),
    )
    with mirror(feeding, "users", light.url) as running:
        applied(running, 3)
    assert [number for number, _ in light.rows(SELECT)] == [1, 10, 12, 13]


def test_transactions_over_several_tables_and_in_parts(
    feeding: Producer, light: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN transactions published as atomic batches that end with another table, and one that is
    larger than a batch of the mirror WHEN they are mirrored THEN nothing is missing."""
    monkeypatch.setattr(transactions, "BATCH_CHANGES", 7)
    other = relation("other")
    feeding.snapshot(USERS, [], visibility="1:1:")
    row = event(other, "c", after={"id": 1, "name": None}, lsn=2, xid=2)
    feeding.wal_batch((USERS, insert(1, lsn=2, xid=2)), (other, row), (other, row))
    with mirror(feeding, "users", light.url) as running:
        applied(running, 1)
        feeding.wal(USERS, *(insert(number, lsn=3, xid=3) for number in range(2, 1200)))
        row = event(other, "c", after={"id": 1, "name": None}, lsn=4, xid=4)
        feeding.wal_batch((USERS, insert(1200, lsn=4, xid=4)), (other, row))
        applied(running, 1200)
        assert running.status.changes == 1200
    assert [number for number, _ in light.rows(SELECT)] == list(range(1, 1201))


def test_without_a_visibility_the_lsn_decides(feeding: Producer, light: Place) -> None:
    feeding.snapshot(USERS, [{"id": 1, "name": "a"}], lsn="0/5")
    feeding.wal(
        USERS, insert(10, lsn=4, xid=99), insert(11, lsn=5, xid=99), insert(12, lsn=6, xid=1)
    )
    with mirror(feeding, "users", light.url) as running:
        applied(running, 1)
    assert [number for number, _ in light.rows(SELECT)] == [1, 12]


def test_empty_table_with_an_unusual_name(feeding: Producer, place: Place) -> None:
    table = relation(
        "odd. \"name\"",
        Column(name="a b", type_oid=INT, key=True),
        Column(name="ü.1", type_oid=TEXT),
        schema="Other",
    )  # fmt: skip
    feeding.snapshot(table, [], visibility="1:1:")
    with mirror(feeding, '"Other"."odd. ""name"""', place.url) as running:
        running.follows()
        row = {"a_x20_b": 1, "_xFC__x2E_1": "é"}
        feeding.wal(table, event(table, "c", after=row, lsn=99, xid=9))
        applied(running, 1)
    name = place.name("Other", table.name)
    assert place.rows(f"SELECT * FROM {name}") == [(1, "é")]


def test_dropped_and_added_columns(feeding: Producer, place: Place) -> None:
    """GIVEN a mirror WHEN a column is dropped THEN the mirror drops it; WHEN a column is added or
    has another type THEN the mirror takes a new snapshot: rows may have changed without an event.
    """
    more = relation("users", *USERS.columns, Column(name="more", type_oid=TEXT))
    feeding.snapshot(more, [{"id": 1, "name": "a", "more": "b"}], visibility="1:1:")
    with mirror(feeding, "users", place.url) as running:
        running.follows()
        feeding.wal(USERS, insert(2, lsn=2, xid=2))
        applied(running, 1)
        running.wait(lambda: running.status.phase.value == "following", "following")
        assert running.status.snapshots == 1
        assert place.rows("SELECT * FROM users ORDER BY id") == [(1, "a"), (2, "x")]
        rows: list[dict[str, Any]] = [{"id": 1, "name": "a", "more": "default"}]
        feeding.topics.clear()
        feeding.snapshot(more, rows, visibility="4:4:")
        feeding.wal(
            more, event(more, "c", after={"id": 3, "name": None, "more": "y"}, lsn=3, xid=3)
        )
        running.wait(lambda: running.status.snapshots == 2, "a new snapshot")
        assert place.rows("SELECT * FROM users ORDER BY id") == [(1, "a", "default")]
        other = relation("users", *USERS.columns, Column(name="more", type_oid=INT))
        feeding.topics.clear()
        feeding.snapshot(other, [{"id": 1, "name": "a", "more": 7}], visibility="9:9:")
        feeding.wal(
            other, event(other, "c", after={"id": 4, "name": None, "more": 8}, lsn=9, xid=9)
        )
        running.wait(lambda: running.status.snapshots == 3, "a new snapshot")
        running.wait(
            lambda: place.rows("SELECT * FROM users ORDER BY id") == [(1, "a", 7), (4, None, 8)],
            "the rows of the new snapshot, and the change after it",
        )


def test_values_of_another_type_cause_a_new_snapshot(feeding: Producer, copy: Database) -> None:
    """GIVEN a mirror of a number WHEN the column becomes text THEN the mirror takes a new snapshot
    before it writes values of the other type."""
    numbers = relation("users", USERS.columns[0], Column(name="name", type_oid=INT))
    feeding.snapshot(numbers, [{"id": 1, "name": 1}], visibility="1:1:")
    port = copy.server.port
    with mirror(feeding, "users", f"postgresql://postgres@127.0.0.1:{port}/{copy.name}") as running:
        running.follows()
        feeding.topics.clear()
        feeding.snapshot(USERS, [{"id": 1, "name": "one"}], visibility="9:9:")
        feeding.wal(USERS, insert(2, lsn=9, xid=9))
        applied(running, 1)
        assert copy.query(SELECT) == [(1, "one"), (2, "x")]


def test_new_type_with_the_same_avro_type(feeding: Producer, light: Place) -> None:
    """GIVEN a mirror WHEN a column gets a type with the same Avro type, and so the same fingerprint
    THEN the mirror detects it by the text of the schema, and takes a new snapshot."""
    plain, network = (
        relation("users", USERS.columns[0], Column(name="name", type_oid=oid))
        for oid in (TEXT, INET)
    )
    assert feeding.serve_schema(plain) == feeding.serve_schema(network)
    feeding.publish_schema(plain)
    feeding.snapshot(plain, [{"id": 1, "name": "10.0.0.1"}], visibility="1:1:")
    with mirror(feeding, "users", light.url) as running:
        running.follows()
        feeding.wal(plain, insert(2, lsn=2, xid=2))
        applied(running, 1)
        feeding.topics.clear()
        feeding.snapshot(network, [{"id": 1, "name": "10.0.0.1/8"}], visibility="9:9:")
        feeding.publish_schema(network)
        running.wait(lambda: running.status.snapshots == 2, "a new snapshot")
        feeding.wal(network, insert(3, lsn=9, xid=9))
        applied(running, 2)
        assert running.status.snapshots == 2
    assert light.rows(SELECT) == [(1, "10.0.0.1/8"), (3, "x")]


@pytest.mark.parametrize("key", [None, ["id"]])
def test_rows_of_replica_identity_full(
    feeding: Producer, place: Place, key: list[str] | None
) -> None:
    """GIVEN a table without a key in its schema WHEN rows change THEN each is found by all its
    values, or by the key that the user names."""
    columns = [replace(column, key=True) for column in USERS.columns]
    table = relation("users", *columns, identity=ReplicaIdentity.FULL)
    same: dict[str, Any] = {"id": 1, "name": None}
    rows = [same] if key else [same, same]
    feeding.snapshot(table, rows, visibility="1:1:")
    feeding.wal(
        table,
        event(table, "u_pk", before=same, after={"id": 2, "name": "b"}, lsn=2, xid=2),
        event(table, "c", after={"id": 3, "name": "c"}, lsn=3, xid=3),
        event(table, "d", before={"id": 3, "name": "c"}, lsn=4, xid=4),
    )
    with mirror(feeding, "users", place.url, key=key) as running:
        applied(running, 3)
    assert place.rows(SELECT) == ([] if key else [(1, None)]) + [(2, "b")]


def test_failed_snapshot_is_requested_again(feeding: Producer, light: Place) -> None:
    topic = feeding.topic(USERS)
    row = creek.packet(encode(creek.row(USERS, {}), {"id": 9, "name": "gone"}))
    feeding.publish(topic, feeding.header(USERS), row)
    feeding.publish(topic, creek.packet(b"{}"), headers={"Tailrace-Error": "the session is gone"})
    feeding.snapshot(USERS, [{"id": 1, "name": "a"}])
    with mirror(feeding, "users", light.url) as running:
        running.follows()
    assert light.rows(SELECT) == [(1, "a")]
    assert len(feeding.requests) == 2


def test_refusal_of_a_producer_ends_the_mirror(feeding: Producer, light: Place) -> None:
    feeding.refusal = "404", {"error": "no table users", "code": "BAD_CONFIG", "hint": "y"}
    with (
        pytest.raises(ConfigError, match="no table users"),
        mirror(feeding, "users", light.url) as running,
    ):
        running.ended()


def test_stream_that_was_created_again(feeding: Producer, light: Place) -> None:
    """GIVEN a mirror that is stopped WHEN the stream has lost the next changes THEN the mirror
    takes a new snapshot."""
    feeding.snapshot(USERS, [{"id": 1, "name": "a"}], visibility="1:1:")
    with mirror(feeding, "users", light.url) as running:
        running.follows()
        feeding.wal(USERS, insert(2, lsn=2, xid=2))
        applied(running, 1)
    feeding.purge("wal")
    feeding.topics.clear()
    feeding.snapshot(USERS, [{"id": 5, "name": "b"}], visibility="9:9:", since=AT.isoformat())
    feeding.wal(USERS, insert(6, lsn=9, xid=9))
    with mirror(feeding, "users", light.url) as running:
        running.wait(lambda: running.status.snapshots == 1, "a new snapshot")
        applied(running, 1)
    assert [number for number, _ in light.rows(SELECT)] == [5, 6]


def test_mirror_survives_restarts_of_the_server(
    feeding: Producer, server: EmbeddedNats, light: Place
) -> None:
    source = RandomTable(USERS, random.Random(5))
    feeding.snapshot(USERS, [], **source.header())
    count = 0
    with mirror(feeding, "users", light.url) as running:
        running.follows()
        for _ in range(3):
            server.kill()
            server.start()
            changes = joined(source.transaction() for _ in range(50))
            feeding.wal(USERS, *changes)
            count += len(changes)
            applied(running, count)
        assert running.status.changes == count
    assert light.rows(SELECT) == [(row["id"], row["name"]) for row in source.listed()]
    assert DATABASE in feeding.requests[0].values()
