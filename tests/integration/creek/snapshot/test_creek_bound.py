"""The rows of a snapshot and the changes after its LSN equal the table, whatever was invisible."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.position import Lsn
from tailrace.visibility import Visibility
from tests.integration.cases.running import running, settle, write_items
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.change import Change
    from tests.fix_capture import Captured
    from tests.fix_postgres import Database
    from tests.integration.creek.snapshot.system import System, Topic


@pytest.fixture
def captured(system: System, capture: Callable[..., Captured]) -> Captured:
    """The system's database and its log."""
    system.database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, v text);"
        "INSERT INTO items SELECT g, 'v' || g FROM generate_series(1, 1000) g"
    )
    made = capture(system.database)
    system.source["publication"] = made.publication
    system.log = made.folder
    made.catch_up()
    return made


def changes(captured: Captured) -> list[Change]:
    """Of rows."""
    return [change for change in captured.changes() if change.relation is not None]


def selected(database: Database) -> dict[int, str]:
    return dict(database.query("SELECT id, v FROM items"))


def replayed(changes: list[Change], topic: Topic) -> dict[int, str]:
    """What Creek's client has in the end: changes up to the header's LSN are left out."""
    after = Lsn.parse(topic.header["lsn"])
    rows: dict[int, Any] = {row["id"]: row["v"] for row in topic.rows}
    for change in changes:
        if change.position.lsn <= after:
            continue
        for image in (change.before, change.after):
            if image is not None and isinstance(image[0], bytes):
                rows.pop(int(image[0]), None)
        if change.after is not None:
            key, value = change.after
            assert isinstance(key, bytes)
            assert isinstance(value, bytes)
            rows[int(key)] = value.decode()
    return rows


def test_a_change_that_is_in_the_stream_and_not_yet_visible(
    system: System, captured: Captured, request: pytest.FixtureRequest
) -> None:
    """P41: the snapshot has the old row, though it is taken long after the commit."""
    with running(captured), system.database.connect() as connection:
        system.start_service()
        request.getfixturevalue("hanging")
        thread = threading.Thread(
            target=lambda: connection.execute("UPDATE items SET v = 'new' WHERE id = 7")
        )
        thread.start()
        try:
            wait_for(lambda: changes(captured), "the update is in the log")
            (change,) = changes(captured)
            system.database.execute(
                "SET synchronous_commit TO local; UPDATE items SET v = 'other' WHERE id = 8"
            )
            topic = system.ask().text
            assert system.over(topic)["state"] == "complete"
        finally:
            connection.cancel()
            thread.join()
        found = system.topic(topic)
        seen = {row["id"]: row["v"] for row in found.rows}
        assert (seen[7], seen[8]) == ("v7", "other")
        assert Lsn.parse(found.header["lsn"]) == change.position.lsn - 1
        # Clients read the stream from this time on: the update was stored before the snapshot.
        assert datetime.fromisoformat(found.header["at"]) < change.committed_at
        wait_for(lambda: len(changes(captured)) == 2, "both updates are in the log")
    assert replayed(changes(captured), found) == selected(system.database)


def test_a_hanging_commit_older_than_the_pipeline_is_waited_for(
    system: System, captured: Captured, request: pytest.FixtureRequest
) -> None:
    """The stream does not have it."""
    with running(captured), system.database.connect() as connection:
        request.getfixturevalue("hanging")
        thread = threading.Thread(
            target=lambda: connection.execute("UPDATE items SET v = 'new' WHERE id = 7")
        )
        thread.start()
        wait_for(lambda: changes(captured), "the update is in the log")
        checkpoints = system.data / "checkpoints" / "p"
        checkpoints.mkdir(parents=True)
        (checkpoints / "tailrace-start").write_text(f"{captured.log.end().position}\n")
        system.start_service()
        topic = system.ask().text
        assert system.service is not None
        service = system.service
        wait_for(lambda: "is not visible yet" in service.progress()[-1].error, "it is waited for")
        assert not system.waves
        connection.cancel()
        thread.join()
        assert system.over(topic)["state"] == "complete"
    assert {row["id"]: row["v"] for row in system.topic(topic).rows}[7] == "new"


def test_visible_changes_are_not_repeated(system: System, captured: Captured) -> None:
    """On an idle database capture moves on when it is asked to."""
    with running(captured):
        system.database.execute("UPDATE items SET v = 'new'")
        wait_for(lambda: len(changes(captured)) == 1000, "the updates are in the log")
        system.start_service()
        topic = system.ask().text
        system.over(topic)
    after = Lsn.parse(system.topic(topic).header["lsn"])
    assert after >= changes(captured)[-1].position.lsn


def test_while_capture_is_stopped(system: System, captured: Captured) -> None:
    """What is not in the log yet comes again."""
    before = captured.log.end().end_lsn
    system.database.execute("UPDATE items SET v = 'new' WHERE id <= 10")
    system.start_service()
    topic = system.ask().text
    assert system.over(topic)["state"] == "complete"
    with running(captured):
        settle(captured)
    found = system.topic(topic)
    assert Lsn.parse(found.header["lsn"]) < before
    assert replayed(changes(captured), found) == selected(system.database)


@pytest.mark.long
def test_under_load(system: System, captured: Captured, seed: int) -> None:
    """Writers change, move, delete and insert rows while snapshots are taken."""
    stopping = threading.Event()
    topics = []
    writers = [
        threading.Thread(target=write_items, args=(system.database, stopping, seed + number, 500))
        for number in range(2)
    ]
    with ExitStack() as owned:
        owned.enter_context(running(captured))
        system.start_service()
        for writer in writers:
            writer.start()
            owned.callback(writer.join)
        owned.callback(stopping.set)
        for _ in range(3):
            topics.append(system.ask().text)
            assert system.over(topics[-1])["state"] == "complete"
    with running(captured):
        settle(captured)
    captured_changes = changes(captured)
    for topic in map(system.topic, topics):
        seen = Visibility.parse(topic.header["visibility"])
        assert seen.xmax & 0xFFFFFFFF == topic.header["tx_id"]
        assert replayed(captured_changes, topic) == selected(system.database)
