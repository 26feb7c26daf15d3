"""Pipelines with a real PostgreSQL, log, Spark and JetStream."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from tailrace.pipeline import pipeline
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace.testing import EmbeddedNats
    from tests.fix_capture import Captured
    from tests.fix_pipeline import Delivery
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]
    Delivering = Callable[..., Delivery]


def rows_of(delivery: Delivery) -> list[dict[str, Any]]:
    return [message.json for message in delivery.received()]


def test_every_change_arrives_once_in_order(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
    captured = capture(database)
    delivery = deliver(captured)
    database.execute("INSERT INTO users VALUES (1, 'ann'), (2, 'bob')")
    database.execute("UPDATE users SET name = 'anna' WHERE id = 1")
    database.execute("DELETE FROM users WHERE id = 2")
    captured.catch_up()
    progress = delivery.run()
    assert (progress.state, progress.events) == ("stopped", 4)
    assert progress.last_committed_at is not None
    found = delivery.received()
    assert [message.subject.split(".", 1)[1] for message in found] == [
        "users.insert", "users.insert", "users.update", "users.delete",
    ]  # fmt: skip
    assert [message.json["data"] for message in found] == [
        {"id": 1, "name": "ann"},
        {"id": 2, "name": "bob"},
        {"id": 1, "name": "anna"},
        {"id": 2, "name": None},
    ]
    assert len({message.id for message in found}) == 4
    database.execute("INSERT INTO users VALUES (3, 'cyd')")
    captured.catch_up()
    assert delivery.run().events == 1
    assert rows_of(delivery)[-1]["data"] == {"id": 3, "name": "cyd"}
    assert len(delivery.received()) == 5


def _all_empty(folder: Path, _newest: int) -> None:
    for kind in ("offsets", "commits"):
        for path in (folder / kind).iterdir():
            path.write_bytes(b"")
        (folder / kind / ".9.1d44-4bbf.tmp").write_text("v1")


def _torn_plan(folder: Path, newest: int) -> None:
    path = folder / "offsets" / str(newest)
    path.write_bytes(path.read_bytes()[:-20])


def _lost_plan(folder: Path, newest: int) -> None:
    (folder / "offsets" / str(newest)).unlink()


def _torn_commit(folder: Path, newest: int) -> None:
    path = folder / "commits" / str(newest)
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize("damage", [_all_empty, _torn_plan, _lost_plan, _torn_commit])
def test_a_checkpoint_after_a_power_cut_is_repaired(
    database: Database,
    capture: Capturing,
    deliver: Delivering,
    damage: Callable[[Path, int], None],
) -> None:
    """GIVEN a power cut that damaged Spark's files WHEN the pipeline starts THEN it delivers what
    is new, once."""
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    captured = capture(database)
    delivery = deliver(captured)
    for number in (1, 2):
        database.execute(f"INSERT INTO users VALUES ({number})")
        captured.catch_up()
        delivery.run()
        folder = delivery.data / "checkpoints" / delivery.name
        damage(folder, max(int(path.name) for path in (folder / "commits").iterdir()))
    database.execute("INSERT INTO users VALUES (3)")
    captured.catch_up()
    assert delivery.run().state == "stopped"
    assert [row["data"]["id"] for row in rows_of(delivery)] == [1, 2, 3]


def test_no_query_is_started_while_the_sink_is_unreachable(
    database: Database,
    capture: Capturing,
    deliver: Delivering,
    server: EmbeddedNats,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GIVEN an unreachable sink WHEN a pipeline retries THEN it starts a query once the sink is
    up."""
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    captured = capture(database)
    database.execute("INSERT INTO users VALUES (1)")
    captured.catch_up()
    delivery = deliver(captured, sink={"url": server.url})
    start = Mock(side_effect=pipeline.start)
    monkeypatch.setattr(pipeline, "start", start)
    server.kill()
    with delivery.running() as progress:
        wait_for(lambda: progress.figures.restarts >= 3, "it to try again")
        assert (progress.figures.state, progress.figures.code) == ("retrying", "SINK_UNREACHABLE")
        start.assert_not_called()
        server.start()
        wait_for(lambda: progress.figures.events == 1, "the change to arrive")
        wait_for(lambda: progress.figures.state == "running", "the pipeline to run")
    start.assert_called_once()


def test_all_rows_of_a_copy_arrive_although_they_share_an_lsn(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    database.execute("CREATE TABLE big (id int PRIMARY KEY, t text)")
    captured = capture(database)
    with database.connect() as connection, connection.cursor() as cursor:
        with cursor.copy("COPY big FROM STDIN") as copy:
            for number in range(10_000):
                copy.write_row((number, f"row {number}"))
        connection.commit()
    captured.catch_up()
    delivery = deliver(captured, encoding="msgpack")
    assert delivery.run().events == 10_000
    found = [message.msgpack for message in delivery.received()]
    assert [message["data"]["id"] for message in found] == list(range(10_000))
    assert len({message["msg_id"] for message in found}) == 10_000
    assert len({message["lsn"] for message in found}) == 1


ODD = ["Upper", "with space", "a.b", "a*b", "a>b", 'quo"te', "ünï", "per%cent", "tab\tbed", "a%2Eb"]


def test_special_names_have_distinct_valid_subjects(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    quoted = {name: '"' + name.replace('"', '""') + '"' for name in ODD}
    for text in quoted.values():
        database.execute(f'CREATE TABLE {text} ("k.k" int PRIMARY KEY, {text} text)')
        database.execute(f"CREATE SCHEMA {text}")
        database.execute(f"CREATE TABLE {text}.{text} (id int PRIMARY KEY)")
    captured = capture(database)
    for text in quoted.values():
        database.execute(f"INSERT INTO {text} VALUES (1, 'x')")
        database.execute(f"INSERT INTO {text}.{text} VALUES (1)")
    captured.catch_up()
    delivery = deliver(captured)
    assert delivery.run().events == 2 * len(ODD)
    found = delivery.received()
    subjects = {message.subject for message in found}
    assert len(subjects) == 2 * len(ODD)
    for subject in subjects:
        assert re.fullmatch(r"[^\s*>]+", subject)
        assert all(subject.split("."))
    plain = [message.json for message in found if message.json["schema"] == "public"]
    assert [row["table"] for row in plain] == ODD
    assert all(set(row["data"]) == {"k.k", row["table"]} for row in plain)


def test_reading_a_value_that_was_not_sent_stops_the_pipeline(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    database.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, region text, total numeric(10, 2), "
        "paid bool, placed timestamptz, note text)"
    )
    captured = capture(database)
    database.execute(
        "INSERT INTO orders SELECT g, CASE g % 3 WHEN 0 THEN 'eu' WHEN 1 THEN 'us' END, g * 10.5, "
        "g % 2 = 0, '2026-01-01 00:00:00+00'::timestamptz + g * interval '1 hour', 'n' || g "
        "FROM generate_series(1, 30) g"
    )
    database.execute("UPDATE orders SET total = 1000 WHERE id = 6")
    database.execute("DELETE FROM orders WHERE id = 9")
    captured.catch_up()
    delivery = deliver(
        captured,
        where="region = 'eu' AND (op = 'delete' OR after.total > 50)",
        select=["id", "upper(region) AS region", "total", "total * 2 AS double", "placed"],
        route=f"concat('{database.name}.routed.', coalesce(region, 'none'))",
        shape="plain",
    )
    # Deleting shows the key alone, and `region` of it is not known: the pipeline must say so.
    progress = delivery.run()
    assert progress.state == "failed"
    assert progress.code == "POISONED"
    assert "region" in progress.message


def test_a_row_that_an_expression_cannot_compute_stops_the_pipeline(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    """GIVEN a text column WHEN a row in it is no number and a filter reads it as one THEN the
    pipeline fails and does not retry: the same row would fail again."""
    database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, code text)")
    captured = capture(database)
    database.execute("INSERT INTO orders VALUES (1, '17'), (2, 'seventeen')")
    captured.catch_up()
    progress = deliver(captured, where="after.code > 3").run()
    assert progress.state == "failed"
    assert progress.code == "BAD_EXPRESSION"
    assert "'seventeen'" in progress.message


def test_payload_and_headers_by_expression(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    """GIVEN expressions for payload and headers THEN messages have them; where the payload is NULL,
    and for logical messages, it is that of the shape."""
    database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, customer text, total int)")
    captured = capture(database)
    database.execute("INSERT INTO orders VALUES (1, 'ann', 10), (2, 'bob', 20)")
    database.execute("DELETE FROM orders WHERE id = 2")
    database.execute("SELECT pg_logical_emit_message(true, 'note', 'hello')")
    captured.catch_up()
    delivery = deliver(
        captured,
        messages=["note"],
        payload="CASE WHEN op <> 'delete' THEN struct(id, struct(customer, total * 2 AS twice) AS "
        "of) END",
        headers={"Operation": "op", "Customer": "after.customer"},
        shape="plain",
    )
    progress = delivery.run()
    assert progress.state == "stopped", progress.message
    found = delivery.received()
    assert [message.json for message in found[:2]] == [
        {"id": 1, "of": {"customer": "ann", "twice": 20}},
        {"id": 2, "of": {"customer": "bob", "twice": 40}},
    ]
    assert [message.json["op"] for message in found[2:]] == ["delete", "message"]
    names = ("Operation", "Customer")
    assert [[message.headers.get(name) for name in names] for message in found] == [
        ["insert", "ann"],
        ["insert", "bob"],
        ["delete", None],
        ["message", None],
    ]


@pytest.mark.parametrize("atomic", [False, True], ids=["plain", "atomic"])
@pytest.mark.parametrize("large", [2, 5])
def test_a_message_that_is_too_large_does_not_tear_its_transaction(
    database: Database, capture: Capturing, deliver: Delivering, atomic: bool, large: int
) -> None:
    """GIVEN a transaction with a message that no server takes THEN the pipeline stops and names it,
    with all earlier transactions in the stream, and nothing of this one."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY, body text)")
    captured = capture(database)
    database.execute("INSERT INTO items SELECT generate_series(-3, 1), 'small'")
    database.execute(
        "INSERT INTO items SELECT g, repeat('x', CASE g WHEN %s THEN 2000000 ELSE 1 END) "
        "FROM generate_series(2, 6) g",
        large,
    )
    captured.catch_up()
    name = database.name
    stream = {"name": f"S{name}", "subjects": [f"{name}.>"], "atomic": atomic}
    delivery = deliver(
        captured,
        sink={"stream": stream, "atomic": "transaction" if atomic else "none"},
        park="never",
    )
    stopped = delivery.run()
    assert (stopped.state, stopped.code) == ("failed", "POISONED")
    assert "the limit is" in stopped.message
    stored = [message.json["data"]["id"] for message in delivery.received()]
    assert stored == [-3, -2, -1, 0, 1]


def test_where_select_and_route_with_full_old_rows(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    database.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, region text, total numeric(10, 2), "
        "placed timestamptz); ALTER TABLE orders REPLICA IDENTITY FULL"
    )
    captured = capture(database)
    database.execute(
        "INSERT INTO orders SELECT g, CASE g % 3 WHEN 0 THEN 'eu' WHEN 1 THEN 'us' END, g * 10.5, "
        "'2026-01-01 00:00:00+00'::timestamptz + g * interval '1 hour' "
        "FROM generate_series(1, 30) g"
    )
    database.execute("UPDATE orders SET total = 1000 WHERE id = 6")
    database.execute("DELETE FROM orders WHERE id = 9")
    captured.catch_up()
    delivery = deliver(
        captured,
        where="region = 'eu' AND (op = 'delete' OR after.total > 100)",
        select=["id", "upper(region) AS region", "total", "total * 2 AS twice", "placed"],
        route=f"concat('{database.name}.routed.', region)",
        shape="plain",
    )
    progress = delivery.run()
    assert progress.state == "stopped", progress.message
    found = delivery.received()
    assert {message.subject for message in found} == {f"{database.name}.routed.eu"}
    rows = [message.json for message in found]
    inserted = [row["after"]["id"] for row in rows if row["op"] == "insert"]
    expected = database.query(
        "SELECT g FROM generate_series(1, 30) g WHERE g % 3 = 0 AND g * 10.5 > 100 ORDER BY g"
    )
    assert inserted == [row[0] for row in expected]
    update = next(row for row in rows if row["op"] == "update")
    assert update["after"] == {
        "id": 6,
        "region": "EU",
        "total": "1000.00",
        "twice": "2000.00",
        "placed": "2026-01-01T06:00:00Z",
    }
    assert update["before"]["total"] == "63.00"
    assert [row["before"]["id"] for row in rows if row["op"] == "delete"] == [9]


def test_an_added_column_replans_the_pipeline(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    captured = capture(database)
    delivery = deliver(captured, where="a > 10", shape="plain")
    database.execute("INSERT INTO t VALUES (1, 5), (2, 15)")
    database.execute("ALTER TABLE t ADD b text DEFAULT 'x'")
    database.execute("INSERT INTO t VALUES (3, 20, 'y'), (4, 1, 'z')")
    database.execute("ALTER TABLE t ALTER a TYPE text USING a::text")
    database.execute("ALTER TABLE t ALTER a TYPE bigint USING a::bigint")
    database.execute("INSERT INTO t VALUES (5, 30, 'w')")
    captured.catch_up()
    assert delivery.run().state == "stopped"
    assert [row["after"] for row in rows_of(delivery)] == [
        {"id": 2, "a": 15},
        {"id": 3, "a": 20, "b": "y"},
        {"id": 5, "a": 30, "b": "w"},
    ]
    database.execute("ALTER TABLE t ADD c int")
    database.execute("INSERT INTO t VALUES (6, 40, 'v', 1)")
    captured.catch_up()
    assert delivery.run().state == "stopped"
    assert rows_of(delivery)[-1]["after"] == {"id": 6, "a": 40, "b": "v", "c": 1}
    database.execute("ALTER TABLE t DROP a")
    database.execute("INSERT INTO t VALUES (7, 'u', 2)")
    captured.catch_up()
    progress = delivery.run()
    assert (progress.state, progress.code) == ("failed", "BAD_EXPRESSION")
    assert "a" in progress.message
    assert len(rows_of(delivery)) == 4


def test_lanes_keep_the_order_of_each_key(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, version int)")
    captured = capture(database)
    database.execute("INSERT INTO t SELECT g, 0 FROM generate_series(1, 200) g")
    for version in range(1, 6):
        database.execute("UPDATE t SET version = %s", version)
    # Keys move along and swap places.
    database.execute("UPDATE t SET id = id + 1000 WHERE id % 5 = 0")
    database.execute(
        "BEGIN; UPDATE t SET id = -1 WHERE id = 1; UPDATE t SET id = 1 WHERE id = 2; "
        "UPDATE t SET id = 2 WHERE id = -1; COMMIT"
    )
    database.execute("UPDATE t SET version = 6")
    database.execute("TRUNCATE t")
    database.execute("INSERT INTO t SELECT g, 7 FROM generate_series(1, 50) g")
    captured.catch_up()
    delivery = deliver(captured, lanes=4, shape="plain")
    progress = delivery.run()
    total = 200 + 5 * 200 + 40 + 3 + 200 + 1 + 50
    assert (progress.state, progress.events) == ("stopped", total)
    rows = rows_of(delivery)
    assert len({row["id"] for row in rows}) == total
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    table: dict[int, int] = {}
    for row in rows:
        place = (int(row["lsn"].replace("/", ""), 16), row["ordinal"])
        for image in (row["before"], row["after"]):
            if image is not None:
                places[image["id"]].append(place)
        if row["op"] == "truncate":
            table.clear()
        else:
            if row["before"] is not None:
                del table[row["before"]["id"]]
            table[row["after"]["id"]] = row["after"]["version"]
    assert all(found == sorted(found) for found in places.values())
    assert table == dict(database.query("SELECT id, version FROM t"))
