"""Mode `events`: the table of events, its columns and its partitions."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from tailrace.change import Op
from tailrace.errors import SinkRefusedError
from tailrace.position import ORIGIN
from tailrace.schema import Column
from tailrace.sinks.outcome import Verdict
from tailrace.sinks.postgres.sink_type import SINK
from tests.integration.postgres.bench import batch, delivered, messages
from tests.unit.encode.groups import encoder, group, image, table
from tests.unit.sinks.rows import position

if TYPE_CHECKING:
    from tests.integration.postgres.bench import Bench

DAY_US = 86_400_000_000
JANUARY = datetime(2026, 1, 1, tzinfo=UTC)


def micros(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000


def partitions(bench: Bench) -> list[str]:
    statement = (
        "SELECT inhrelid::regclass::text FROM pg_inherits"
        " WHERE inhparent = 'wal_events'::regclass ORDER BY 1"
    )
    return [name for (name,) in bench.database.query(statement)]


def test_columns_have_what_messages_and_payloads_give(bench: Bench) -> None:
    payload = {
        "op": "update", "schema": "public", "table": "items", "after": {"id": 7, "x": "é"},
    }  # fmt: skip
    with bench.opened() as sink:
        rows = messages([payload], keys=["7"], committed_at=micros(JANUARY) + 123)
        delivered(sink, rows)
    found = bench.database.query(
        "SELECT pipeline, id, commit_lsn, commit_idx, destination, key, payload, action,"
        " source_table_schema, source_table_name, committed_at, inserted_at > '2026-01-01'"
        " FROM wal_events"
    )
    at = position(0)
    assert found == [
        (
            "p", "m0", int(at.lsn), at.ordinal, "public.items", "7", payload, "update", "public",
            "items", JANUARY + timedelta(microseconds=123), True,
        )
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["jsonb", "json", "bytea"])
def test_payloads_are_kept_in_the_type_of_the_column(bench: Bench, kind: str) -> None:
    body = b'{"b" : 1, "a": [1.50, "\\ud83d\\udc0e"]}'
    with bench.opened(payload=kind) as sink:
        delivered(sink, messages([body]))
    assert bench.database.query("SELECT payload FROM wal_events") == [
        (body if kind == "bytea" else json.loads(body),)
    ]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "\\u0000"}', "which jsonb cannot hold"),
        (b'{"a": "\\\\\\u0000"}', "which jsonb cannot hold"),
        (b'{"a": "\0"}', "contains a NUL character"),
    ],
)
def test_what_jsonb_cannot_hold_is_found_before_it_is_sent(
    bench: Bench, body: bytes, reason: str
) -> None:
    with bench.opened() as sink:
        rows = messages([{}, body, b'{"a": "\\\\u0000"}'])
        refused = sink.inspect(rows)
        assert list(refused) == [1]
        assert reason in refused[1].reason
        assert delivered(sink, rows.take([0, 2])).messages == 2


def test_documents_that_are_not_json_are_found_by_the_server(bench: Bench) -> None:
    with bench.opened() as sink:
        rows = messages([{} if n % 300 else b'{"a": ' for n in range(1000)])
        sink.write(rows)
        failures = sink.flush().failures
        found = [each.message["id"][0].as_py() for each in failures]
        assert found == [b"m0", b"m300", b"m600", b"m900"]
        assert all(each.outcome.verdict is Verdict.REFUSED for each in failures)
        assert "invalid input syntax for type json" in failures[0].outcome.reason
        assert bench.ids() == []


def test_a_receipt_has_a_limited_number_of_refused_messages(bench: Bench) -> None:
    with bench.opened() as sink:
        sink.write(messages([b"{"] * 150))
        sink.write(messages([b"{"] * 100, start=150))
        failures = sink.flush().failures
    found = [each.message["id"][0].as_py() for each in failures]
    assert found == [f"m{n}".encode() for n in range(100)]


def test_partitions_are_created_before_their_rows(bench: Bench) -> None:
    with bench.opened() as sink:
        for day in (0, 0, 3):
            sink.write(batch(range(day * 10, day * 10 + 5 + day), committed_at=day * DAY_US))
            if day == 0:
                sink.flush()
                sink.open(position(4))
        sink.flush()
    today = datetime.now(UTC)
    days = {name.removeprefix("wal_events_p") for name in partitions(bench)}
    assert {"19700101", "19700104", f"{today:%Y%m%d}"} <= days


@pytest.mark.parametrize(("unit", "name"), [("hour", "1970010103"), ("month", "197001")])
def test_partitions_cover_the_chosen_time(bench: Bench, unit: str, name: str) -> None:
    with bench.opened(partition=unit) as sink:
        delivered(sink, batch(range(3), committed_at=3 * 3600 * 1_000_000))
    assert f"wal_events_p{name}" in partitions(bench)


def test_lanes_create_the_same_partitions(bench: Bench) -> None:
    with bench.opened(lane=0, lanes=2) as one, bench.opened(lane=1, lanes=2) as other:
        one.write(batch(range(3), committed_at=5 * DAY_US))
        other.write(batch(range(3, 6), committed_at=5 * DAY_US))
        one.write(batch(range(6, 9), committed_at=6 * DAY_US))
        other.write(batch(range(9, 12), committed_at=6 * DAY_US))
        assert one.flush().messages + other.flush().messages == 12


def test_old_partitions_are_dropped_and_others_stay(bench: Bench) -> None:
    with bench.opened() as sink:
        delivered(sink, batch(range(3), committed_at=0))
        recent = micros(datetime.now(UTC) - timedelta(days=3))
        delivered(sink, batch(range(3, 6), committed_at=recent))
    with bench.opened(position(5), lane=0, retention="30d"):
        assert "wal_events_p19700101" not in partitions(bench)
        assert bench.ids() == ["m3", "m4", "m5"]


def test_a_partition_that_is_in_use_is_dropped_later(bench: Bench) -> None:
    with bench.opened() as sink:
        delivered(sink, batch(range(3), committed_at=0))
    with bench.database.connect() as reader:
        reader.autocommit = False
        reader.execute("SELECT count(*) FROM wal_events")
        with bench.opened(position(2), retention="30d") as sink:
            assert "wal_events_p19700101" in partitions(bench)
            assert delivered(sink, batch(range(3, 6))).messages == 3
        reader.rollback()


def test_a_table_of_the_user_is_used_as_it_is(bench: Bench) -> None:
    bench.database.execute(
        "CREATE TABLE own (pipeline text, id text PRIMARY KEY, commit_lsn bigint,"
        " commit_idx bigint, destination text, key text, committed_at timestamptz, payload jsonb,"
        " size int GENERATED ALWAYS AS (length(payload::text)) STORED)"
    )
    with bench.opened(events="own") as sink:
        delivered(sink, messages([{"a": 1}]))
    assert bench.database.query("SELECT id, size FROM own") == [("m0", 8)]
    with pytest.raises(SinkRefusedError, match="not partitioned by RANGE") as caught:
        bench.sink(events="own", retention="1d").open(ORIGIN)
    assert "retention" in caught.value.hint


def test_a_table_with_other_types_is_refused(bench: Bench) -> None:
    with bench.opened() as sink:
        delivered(sink, batch(range(3)))
    with pytest.raises(SinkRefusedError, match="payload bytea"):
        bench.sink(payload="bytea").open(ORIGIN)


@pytest.mark.parametrize("shape", ["plain", "sequin", "bridge", "debezium"])
def test_generated_columns_know_the_shapes(bench: Bench, shape: str) -> None:
    made = group(
        Op.DELETE, table(Column(name="id", type_oid=23, key=True)), 2, before=image([b"1", b"2"])
    )
    with bench.opened() as sink:
        delivered(sink, encoder(shape, "json").encode(made))
    statement = "SELECT DISTINCT action, source_table_schema, source_table_name FROM wal_events"
    assert bench.database.query(statement) == [("delete", "public", "users")]


def test_check_reports_and_changes_nothing(bench: Bench) -> None:
    settings = bench.sink()._settings
    found = {each.finding: each.severity.value for each in SINK.check(settings)}
    assert [*found.values()] == ["ok", "info", "info"]
    assert "the sink will create table public.wal_events" in found
    assert bench.database.query("SELECT to_regclass('wal_events')") == [(None,)]
    with bench.opened():
        pass
    assert [each.severity.value for each in SINK.check(settings)] == ["ok"]
