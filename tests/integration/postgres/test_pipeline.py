"""Pipelines into another database: PostgreSQL, the log, Spark, and the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_capture import Captured
    from tests.fix_pipeline import Delivery
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]
    Delivering = Callable[..., Delivery]

COUNTERS = "CREATE TABLE counters (id int PRIMARY KEY, n int, note text)"
ALL = "SELECT * FROM counters ORDER BY id"


@pytest.mark.parametrize("stages", [{}, {"lanes": 3}], ids=["plain", "lanes"])
def test_tables_follow_the_source(
    database: Database,
    copy: Database,
    capture: Capturing,
    deliver: Delivering,
    stages: dict[str, Any],
) -> None:
    for each in (database, copy):
        each.execute(COUNTERS)
    captured = capture(database)
    sink = {"type": "postgres", "dsn": copy.dsn, "mode": "tables"}
    delivery = deliver(captured, to=sink, shape="plain", **stages)
    database.execute(
        "INSERT INTO counters SELECT g, 0, repeat('x', g) FROM generate_series(1, 50) g"
    )
    database.execute("UPDATE counters SET n = n + 1")
    database.execute("UPDATE counters SET id = id + 100 WHERE id > 40")
    captured.catch_up()
    assert delivery.run().state == "stopped"
    assert copy.query(ALL) == database.query(ALL)
    database.execute("DELETE FROM counters WHERE id < 5")
    database.execute("TRUNCATE counters")
    database.execute("INSERT INTO counters VALUES (7, 7, NULL)")
    captured.catch_up()
    assert delivery.run().state == "stopped"
    assert copy.query(ALL) == [(7, 7, None)]


def test_events_keep_every_change(
    database: Database, copy: Database, capture: Capturing, deliver: Delivering
) -> None:
    database.execute(COUNTERS)
    captured = capture(database)
    sink = {"type": "postgres", "dsn": copy.dsn, "retention": "90d"}
    delivery = deliver(captured, to=sink, shape="plain")
    database.execute("INSERT INTO counters SELECT g, 0 FROM generate_series(1, 20) g")
    database.execute("UPDATE counters SET n = n + 1 WHERE id = 3")
    database.execute("DELETE FROM counters WHERE id = 3")
    captured.catch_up()
    assert delivery.run().events == 22
    history = (
        "SELECT action, payload -> 'after' -> 'n' FROM wal_events"
        " WHERE (source_table_name, key) = ('counters', '3') ORDER BY commit_lsn, commit_idx"
    )
    assert copy.query(history) == [("insert", 0), ("update", 1), ("delete", None)]


def test_a_change_that_is_refused_stops_the_pipeline(
    database: Database, copy: Database, capture: Capturing, deliver: Delivering
) -> None:
    """GIVEN a target that refuses a change THEN the pipeline stops and names the change; WHEN the
    target accepts it THEN nothing is missing."""
    database.execute(COUNTERS)
    copy.execute(COUNTERS + "; ALTER TABLE counters ADD CONSTRAINT small CHECK (n < 10)")
    captured = capture(database)
    sink = {"type": "postgres", "dsn": copy.dsn, "mode": "tables"}
    delivery = deliver(captured, to=sink, shape="plain")
    database.execute("INSERT INTO counters SELECT g, g FROM generate_series(5, 12) g")
    captured.catch_up()
    stopped = delivery.run()
    assert (stopped.state, stopped.code) == ("failed", "POISONED")
    assert 'violates check constraint "small"' in stopped.message
    assert copy.query(ALL) == []
    copy.execute("ALTER TABLE counters DROP CONSTRAINT small")
    assert delivery.run().state == "stopped"
    assert copy.query(ALL) == database.query(ALL)
