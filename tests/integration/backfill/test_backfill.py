"""Backfills: existing rows arrive among the changes, and each is current at its position."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.backfill import queue
from tailrace.backfill.order import Order
from tailrace.errors import ConfigError
from tailrace.postgres.names import TableName
from tests.integration.backfill.system import System, replayed
from tests.integration.cases.running import write_items
from tests.waiting import holds, wait_for

if TYPE_CHECKING:
    from tests.fix_postgres import Database


def items(database: Database, count: int = 1000) -> None:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, v text);"
        f"INSERT INTO items SELECT g, 'v' || g FROM generate_series(1, {count}) g"
    )


def selected(system: System, table: str = "items") -> dict[int, dict[str, Any]]:
    rows = system.database.query(f"SELECT id, v FROM {table} ORDER BY id")
    return {number: {"id": number, "v": v} for number, v in rows}


def test_rows_arrive_once_in_pages(system: System) -> None:
    items(system.database)
    system.start()
    name = system.fill("items")
    record = system.finished(name)
    assert (record["state"], record["rows"]) == ("complete", 1000), record
    found = system.messages("items")
    assert [message["operation"] for message in found] == ["READ"] * 1000
    assert [message["data"]["id"] for message in found] == list(range(1, 1001))
    assert len({message["msg_id"] for message in found}) == 1000
    # Each page is read in its own transaction.
    assert len({message["timestamp"] for message in found}) > 1
    system.database.execute("UPDATE items SET v = 'new' WHERE id = 7")
    system.delivered()
    assert replayed(system.messages("items")) == selected(system)
    # A second request is another backfill.
    assert system.finished(system.fill("items"))["state"] == "complete"
    assert len(system.messages("items")) == 2001


def test_rows_pass_where_select_and_route(system: System) -> None:
    system.pipeline |= {
        "where": "after.id > 900 or op <> 'read'",
        "select": ["id", "upper(v) AS v"],
        "route": f"concat('{system.database.name}.items.', op, '.', cast(after.id as string))",
        "lanes": 3,
    }
    items(system.database)
    system.start()
    assert system.finished(system.fill("items"))["state"] == "complete"
    found = sorted(system.messages("items"), key=lambda message: message["data"]["id"])
    assert [message["data"] for message in found] == [
        {"id": number, "v": f"V{number}"} for number in range(901, 1001)
    ]
    assert {message["subject"] for message in found} >= {f"{system.database.name}.items.read.901"}


@pytest.mark.long
def test_under_load(system: System, seed: int) -> None:
    """Transactions update, move, delete and insert rows while pages are read."""
    items(system.database, 2000)
    system.pipeline["lanes"] = 2
    system.start()
    stopping = threading.Event()
    writers = [
        threading.Thread(target=write_items, args=(system.database, stopping, seed + number, 1000))
        for number in range(2)
    ]
    for writer in writers:
        writer.start()
    try:
        for _ in range(2):
            assert system.finished(system.fill("items"))["state"] == "complete"
    finally:
        stopping.set()
        for writer in writers:
            writer.join()
    system.delivered()
    found = system.messages("items")
    assert sum(message["operation"] == "READ" for message in found) > 500
    assert replayed(found) == selected(system)


def test_a_change_that_is_delivered_and_not_yet_visible(
    system: System, request: pytest.FixtureRequest
) -> None:
    """P41: the page has the old row, and the stream already has the new one.

    The stream's row lacks a large value that the update did not modify.
    """
    items(system.database, 300)
    system.database.execute(
        "ALTER TABLE items ADD large text; ALTER TABLE items ALTER large SET STORAGE EXTERNAL;"
        "UPDATE items SET large = repeat(v, 1000)"
    )
    system.start()
    name = system.fill("items", rate=20.0)
    wait_for(lambda: system.record(name)["rows_read"] in {100, 200}, "the first page")
    queue.set_desired_state(system.config, name, "pause")
    wait_for(lambda: system.record(name)["state"] == "paused", "the pause")
    request.getfixturevalue("hanging")
    with system.database.connect() as connection:
        thread = threading.Thread(
            target=lambda: connection.execute("UPDATE items SET v = 'new' WHERE id = 250")
        )
        thread.start()
        try:
            wait_for(
                lambda: any(m["operation"] == "UPDATE" for m in system.messages("items")),
                "the update arrives",
            )
            assert system.record(name)["rows_read"] < 250
            assert system.database.query("SELECT v FROM items WHERE id = 250") == [("v250",)]
            queue.set_desired_state(system.config, name, "run")
            assert system.finished(name)["state"] == "complete"
        finally:
            connection.cancel()
            thread.join()
    found = system.messages("items")
    reads = [message["data"] for message in found if message["operation"] == "READ"]
    assert [row["id"] for row in reads] == list(range(1, 301))
    [update] = [message for message in found if message["operation"] == "UPDATE"]
    assert update["unchanged"] == ["large"]
    rows = system.database.query("SELECT id, v, large FROM items")
    assert replayed(found) == {
        number: {"id": number, "v": v, "large": large} for number, v, large in rows
    }


def test_waits_for_an_invisible_commit_from_before_the_pipeline(
    system: System, request: pytest.FixtureRequest
) -> None:
    """The pipeline has not delivered it, and the page does not contain it."""
    items(system.database, 10)
    request.getfixturevalue("hanging")
    with system.database.connect() as connection:
        thread = threading.Thread(
            target=lambda: connection.execute("UPDATE items SET v = 'new' WHERE id = 3")
        )
        thread.start()
        wait_for(
            lambda: system.database.query(
                "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            ),
            "the commit to wait for its standby",
        )
        system.start_capture()
        # `latest` must be after it.
        wait_for(system.has_updated, "the commit in the log")
        system.start_pipeline()
        system.start_service()
        name = system.fill("items")
        wait_for(lambda: system.record(name)["state"] == "running", "it runs")
        holds(lambda: not system.record(name)["rows_read"], 2, "it waits for the commit")
        assert system.record(name)["state"] == "running"
        connection.cancel()
        thread.join()
    assert system.finished(name)["state"] == "complete"
    assert replayed(system.messages("items")) == selected(system)


def test_pause_resume_and_cancel(system: System) -> None:
    items(system.database)
    system.start()
    name = system.fill("items", rate=80.0)
    wait_for(lambda: system.record(name)["rows_read"], "a page")
    queue.set_desired_state(system.config, name, "pause")
    wait_for(lambda: system.record(name)["state"] == "paused", "the pause")
    read = system.record(name)["rows_read"]
    assert read < 1000
    holds(lambda: system.record(name)["rows_read"] == read, 1, "it is paused")
    queue.set_desired_state(system.config, name, "run")
    assert system.finished(name)["rows"] == 1000
    other = system.fill("items", rate=20.0)
    assert other != name
    assert system.fill("items", rate=20.0) == other
    wait_for(lambda: system.record(other)["rows_read"], "a page")
    queue.set_desired_state(system.config, other, "cancel")
    assert system.finished(other)["state"] == "cancelled"
    with pytest.raises(ConfigError, match="has already finished"):
        queue.set_desired_state(system.config, other, "run")
    with pytest.raises(ConfigError, match="there is no backfill"):
        queue.set_desired_state(system.config, "fill-0", "run")


def test_resumes_after_restarts_of_service_and_pipeline(system: System) -> None:
    items(system.database)
    system.start()
    name = system.fill("items", rate=1000.0)
    for rows in (200, 400, 600):
        wait_for(lambda: system.record(name)["rows_read"] >= rows, "more pages")  # noqa: B023
        system.stop_service()
        system.stop_pipeline()
        system.start_pipeline()
        system.start_service()
    assert system.finished(name)["state"] == "complete"
    found = system.messages("items")
    assert sorted(message["data"]["id"] for message in found) == list(range(1, 1001))


def test_a_page_that_is_not_in_the_record(system: System) -> None:
    """A crash right after a page was written does not read it twice."""
    items(system.database)
    system.start()
    name = system.fill("items", rate=500.0)
    wait_for(lambda: system.record(name)["rows_read"] >= 200, "two pages")
    system.stop_service()
    path = system.config.data / "backfills" / "test" / f"{name}.record.json"
    path.unlink()
    system.start_service()
    assert system.finished(name)["state"] == "complete"
    ids = [message["data"]["id"] for message in system.messages("items")]
    assert ids == list(range(1, 1001))


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_a_table_without_a_key(system: System, identity: str) -> None:
    system.database.execute(
        f"CREATE TABLE items (id int, v text); ALTER TABLE items REPLICA IDENTITY {identity};"
        "INSERT INTO items SELECT g / 2, 'v' FROM generate_series(0, 999) g;"
        "INSERT INTO items VALUES (NULL, NULL), (NULL, '')"
    )
    system.start()
    assert system.finished(system.fill("items"))["rows"] == 1002
    found = system.messages("items")
    assert sorted((m["data"]["id"] or -1, m["data"]["v"]) for m in found if m["data"]["v"]) == [
        (g // 2 or -1, "v") for g in range(1000)
    ]
    assert [m["data"] for m in found if not m["data"]["v"]] == [
        {"id": None, "v": None},
        {"id": None, "v": ""},
    ]


def test_a_condition_and_a_bad_one(system: System) -> None:
    items(system.database)
    system.start()
    record = system.finished(system.fill("items", where="id % 2 = 0"))
    assert (record["state"], record["rows"]) == ("complete", 500)
    for bad in ("nowhere = 1", "id = ", "lower(id) = 'a'", "id AND"):
        failed = system.finished(system.fill("items", where=bad))
        assert failed["state"] == "failed"
        assert "refuses the condition" in str(failed["error"])
    for refused in ("true) OR (true", "true; SELECT 1", "pg_cancel_backend(1)", "id = 1 -- one"):
        with pytest.raises(ConfigError, match="invalid condition"):
            system.fill("items", where=refused)
    assert len(selected(system)) == 1000


def test_an_order_on_disk_is_checked_too(system: System) -> None:
    """GIVEN a file with a condition that `submit` would refuse WHEN it runs THEN it fails."""
    items(system.database)
    system.start()
    folder = queue.folder_of(system.config, "test")
    order = Order(id="fill-1", table=TableName("public", "items"), where="pg_sleep(0) IS NULL")
    order.save(folder)
    failed = system.finished(order.id)
    assert failed["state"] == "failed"
    assert "the function pg_sleep() is not allowed" in str(failed["error"])


@pytest.mark.long
def test_the_key_changes_during_a_backfill(system: System) -> None:
    items(system.database)
    system.start()
    name = system.fill("items", rate=80.0)
    wait_for(lambda: system.record(name)["rows_read"] >= 200, "two pages")
    system.database.execute(
        "ALTER TABLE items ADD COLUMN k int GENERATED BY DEFAULT AS IDENTITY;"
        "ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (k)"
    )
    assert system.finished(name)["state"] == "complete"
    system.delivered()
    whole = [m["data"] for m in system.messages("items") if "k" in m["data"]]
    assert sorted(row["id"] for row in whole) == list(range(1, 1001))


def test_unknown_pipelines_and_tables_are_refused(system: System) -> None:
    system.database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    system.pipeline["tables"] = ["public.*"]
    with pytest.raises(ConfigError, match="there is no pipeline 'other'"):
        queue.submit(system.config, "other", "items")
    with pytest.raises(ConfigError, match="not among the tables"):
        queue.submit(system.config, "test", "private.items")
    system.start()
    assert system.finished(system.fill("items"))["state"] == "complete"
    failed = system.finished(system.fill("nowhere"))
    assert (failed["state"], "nowhere" in str(failed["error"])) == ("failed", True)


def test_configured_backfills_run_once(system: System) -> None:
    items(system.database, 10)
    system.pipeline["backfill"] = {"tables": [{"table": "items", "where": "id < 5"}]}
    system.start()
    wait_for(lambda: len(system.messages("items")) == 4, "the rows arrive")
    system.stop_service()
    system.start_service()
    holds(lambda: len(system.messages("items")) == 4, 1, "it is not filled again")
