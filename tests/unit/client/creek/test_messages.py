"""What a consumer of Creek's messages knows without a server."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from tailrace.change import Op
from tailrace.client import Change
from tailrace.client.creek import SchemaMessage, SnapshotHeader, schemas
from tailrace.client.creek.avro import Event, Rows
from tailrace.client.creek.described import described
from tailrace.client.creek.schemas import Known
from tailrace.client.creek.transactions import UNTOLD, included
from tailrace.client.names import Table
from tailrace.encode.creek import schema as creek
from tailrace.errors import ConfigError, MalformedError
from tailrace.mirror.layout import Alteration, Column, Layout
from tailrace.mirror.sources.registry import Address
from tailrace.position import Lsn
from tailrace.schema import Column as Wired
from tailrace.schema import Relation, ReplicaIdentity
from tailrace.visibility import Visibility

AT = datetime(2026, 1, 2, tzinfo=UTC)
USERS = Table("public", "users")


def relation(identity: ReplicaIdentity, keys: str, columns: str = "ab") -> Relation:
    return Relation(
        oid=1,
        namespace="public",
        name="users",
        replica_identity=identity,
        columns=tuple(Wired(name=name, type_oid=25, key=name in keys) for name in columns),
    )


def test_a_consumer_needs_neither_spark_nor_postgres_nor_avro() -> None:
    program = (
        "import sys, tailrace.client.creek;"
        "print(sorted({'pyarrow', 'psycopg', 'pyspark', 'pydantic', 'fastavro'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


def test_without_the_library_the_way_to_it_is_said() -> None:
    program = (
        "import asyncio, sys\n"
        "sys.modules['fastavro'] = None\n"
        "from tailrace.client import creek\n"
        "from tailrace.errors import ConfigError\n"
        "async def main():\n"
        "    async with creek.connect(): pass\n"
        "try:\n"
        "    asyncio.run(main())\n"
        "except ConfigError as error:\n"
        "    print(error.hint)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"pip install 'tailrace[creek]'"


def message(fingerprint: str, columns: str = "ab") -> SchemaMessage:
    text = creek.event(relation(ReplicaIdentity.DEFAULT, "a", columns), {}).text
    return SchemaMessage(fingerprint=fingerprint, schema=text, source="s.t", created_at=AT)


def test_schemas_that_nobody_asks_for_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "_MOST", 3)
    known = Known()
    for number in range(3):
        known.add(message(str(number)), "here")
    first = known.event("0", "here")
    assert first is not None
    assert known.event("0", "here") is first
    assert known.event("0", "there") is None
    known.add(message("3"), "here")
    assert known.event("1", "here") is None
    assert known.event("0", "here") is first


def test_a_schema_with_another_text() -> None:
    """What else is known of the table is of no use then: its changes have to be asked for again."""
    known = Known()
    for place, fingerprint in (("here", "0"), ("here", "1"), ("there", "0")):
        known.add(message(fingerprint), place)
    known.add(message("0"), "here")
    assert known.event("1", "here") is not None
    known.add(message("0", "abc"), "here")
    event = known.event("0", "here")
    assert event is not None
    assert event.after.columns == ("a", "b", "c")
    assert known.event("1", "here") is None
    assert known.event("0", "there") is not None


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"fingerprint":"","schema":"","source":"","created_at":"now"}']
)
def test_what_is_no_schema_and_no_header(data: bytes) -> None:
    with pytest.raises(MalformedError):
        SchemaMessage.of(data)
    with pytest.raises(MalformedError):
        SnapshotHeader.of("topic", data)


def test_times_as_go_writes_them() -> None:
    header = {
        "fingerprint": "f", "schema": "s", "tx_id": 1, "lsn": "0/1", "approx_rows": 0,
        "at": "2026-01-02T03:04:05.123456789+02:00",
    }  # fmt: skip
    found = SnapshotHeader.of("topic", orjson.dumps(header))
    assert found.at == datetime(2026, 1, 2, 1, 4, 5, 123456, tzinfo=UTC)


@pytest.mark.parametrize(
    ("identity", "keys", "wanted"),
    [
        (ReplicaIdentity.DEFAULT, "a", ("a",)),
        (ReplicaIdentity.DEFAULT, "ab", ("a", "b")),
        (ReplicaIdentity.DEFAULT, "", ()),
        (ReplicaIdentity.INDEX, "b", ("b",)),
        (ReplicaIdentity.FULL, "ab", ()),
        (ReplicaIdentity.NOTHING, "", ()),
    ],
)
def test_the_key_of_a_table(identity: ReplicaIdentity, keys: str, wanted: tuple[str, ...]) -> None:
    """Its rows, its changes, and changes that leave something unsaid agree on it."""
    table = relation(identity, keys)
    rows = Rows(creek.row(table, {}).text)
    assert described(USERS, rows.record).key == wanted
    for partial in (False, True):
        event = Event(creek.event(table, {}, partial=partial).text)
        found = described(USERS, event.after, event.before)
        assert (found.key, found.names) == (wanted, ("a", "b"))
        assert set(found.types.values()) == {"text"}


def change(lsn: int, xid: int, op: Op = Op.INSERT) -> Change:
    return Change(op=op, table=USERS, data={}, lsn=Lsn(lsn), xid=xid, id=str(lsn), timestamp=AT)


def test_which_changes_a_snapshot_has() -> None:
    seen = Visibility.parse("20:24:21")
    changes = [
        change(50, 20), change(60, 21), change(150, 22), change(160, 24), change(50, 0, Op.READ),
        change(150, 0, Op.READ), change(100 + (1 << 36), 22),
    ]  # fmt: skip
    told = [True, False, True, False, True, False, False]
    assert included(changes, Lsn(100), seen) == told
    assert included(changes, Lsn(100), UNTOLD) == [True, True, False, False, True, False, False]
    assert included([], Lsn(100), seen) == []


def test_a_change_far_behind_is_not_taken_for_one_that_is_seen() -> None:
    """Transaction numbers repeat, and the place in the log tells."""
    seen = Visibility.parse(f"{2**32 + 20}:{2**32 + 24}:")
    assert included([change(150, 22)], Lsn(100), seen) == [True]
    assert included([change(100 + (1 << 36), 22)], Lsn(100), seen) == [False]


def test_columns_without_positions_are_told_apart_by_their_order() -> None:
    def layout(names: str) -> Layout:
        columns = tuple(Column(name=name, position=0, data_type="text") for name in names)
        return Layout(columns=columns, key=())

    assert Alteration.between(layout("abc"), layout("ac")).moved == ()
    assert Alteration.between(layout("abc"), layout("abcd")).moved == ()
    assert Alteration.between(layout("abc"), layout("acb")).moved != ()


@pytest.mark.parametrize(
    "text", ["nats://h?", "nats://h?creek=", "nats://h?creek=A&database=", "nats://h?other=1"]
)
def test_addresses_that_say_too_little(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Address.parse(text)
    assert "creek=CREEK" in caught.value.hint


def test_addresses() -> None:
    assert Address.parse("nats://u:p@h") == Address(url="nats://u:p@h")
    found: Any = Address.parse("nats://h?database=a%20b&creek=NS")
    assert (found.url, found.creek, found.database) == ("nats://h", "NS", "a b")
