"""Pausing, resuming and restarting a pipeline while it runs."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from tailrace import audit
from tailrace.control import ControlFile
from tailrace.position import Position
from tailrace.testing import HttpReceiver, HttpResponse
from tests.command import call
from tests.waiting import holds, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fix_capture import Captured
    from tests.fix_pipeline import Delivery
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]
    Delivering = Callable[..., Delivery]


def test_a_paused_pipeline_delivers_nothing_until_it_is_resumed(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    captured = capture(database)
    delivery = deliver(captured)
    control = ControlFile(delivery.data, delivery.name)

    def insert(first: int) -> None:
        database.execute(f"INSERT INTO items SELECT generate_series({first}, {first + 4})")
        captured.catch_up()

    control.pause(user="ann", reason="maintenance")
    insert(1)
    with delivery.running() as progress:
        wait_for(lambda: progress.figures.state == "paused", progress.current)
        assert progress.figures.message == "maintenance"
        control.resume(user="ann")
        wait_for(lambda: progress.figures.events == 5, progress.current)
        wait_for(lambda: progress.figures.state == "running", progress.current)
        control.pause(user="ann")
        wait_for(lambda: progress.figures.state == "paused", progress.current)
        insert(6)
        holds(lambda: progress.figures.events == 5, 1)
    # It stays paused over restarts.
    with delivery.running() as progress:
        wait_for(lambda: progress.figures.state == "paused", progress.current)
        control.resume(user="ann")
        wait_for(lambda: progress.figures.events == 5, progress.current)
    assert len(delivery.received()) == 10
    entries = map(json.loads, (delivery.data / audit.FILE).read_text().splitlines())
    found = [(entry["action"], entry["user"], entry["reason"]) for entry in entries]
    assert found[0] == ("pipeline.pause", "ann", "maintenance")
    assert [action for action, _, _ in found[1:]] == [
        "pipeline.resume", "pipeline.pause", "pipeline.resume",
    ]  # fmt: skip


def test_a_pipeline_is_restarted(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    captured = capture(database)
    delivery = deliver(captured)
    with delivery.running() as progress:

        def delivered(count: int) -> bool:
            return progress.figures.events == count

        for number in range(1, 4):
            database.execute(f"INSERT INTO items VALUES ({number})")
            captured.catch_up()
            wait_for(partial(delivered, number), progress.current)
            ControlFile(delivery.data, delivery.name).restart(user="ann")
    assert len(delivery.received()) == 3


def test_a_failed_pipeline_is_restarted(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    """GIVEN a receiver that refuses a change, and a pipeline that failed at it, WHEN the receiver
    is mended and the pipeline restarted THEN it delivers."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    captured = capture(database)
    with HttpReceiver() as receiver:
        sink = {"type": "http", "url": receiver.url, "allow_private": True}
        delivery = deliver(captured, to=sink, park="never")
        receiver.answer = lambda _: HttpResponse(status=422)
        database.execute("INSERT INTO items VALUES (1)")
        captured.catch_up()
        with delivery.running() as progress:
            wait_for(lambda: progress.figures.state == "failed", progress.current)
            receiver.answer = lambda _: HttpResponse()
            ControlFile(delivery.data, delivery.name).restart(user="ann")
            wait_for(lambda: progress.figures.events == 1, progress.current)


def test_a_pipeline_is_rewound_while_it_runs(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    """GIVEN a running pipeline WHEN it is rewound THEN it delivers again from there on, in the same
    order, and goes on; the data folder records who did it."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    captured = capture(database)
    with HttpReceiver() as receiver:
        # One request at a time: keys are in order, too.
        sink = {"type": "http", "url": receiver.url, "allow_private": True, "concurrency": 1}
        delivery = deliver(captured, to=sink)
        control = ControlFile(delivery.data, delivery.name)

        def ids() -> list[int]:
            return [json.loads(each.body)["data"]["id"] for each in receiver.requests]

        def insert(number: int) -> Position:
            database.execute(f"INSERT INTO items VALUES ({number})")
            captured.catch_up()
            return captured.log.end().position

        with delivery.running() as progress:
            places = [insert(number) for number in range(1, 5)]
            wait_for(lambda: ids() == [1, 2, 3, 4], progress.current)
            wait_for(lambda: progress.figures.position == str(places[3]), progress.current)
            control.move("rewind", places[1], user="ann", reason="again")
            wait_for(lambda: ids() == [1, 2, 3, 4, 3, 4], progress.current)
            insert(5)
            wait_for(lambda: ids()[6:] == [5], progress.current)
            assert control.moved().refusal == ""
        # It is not carried out again.
        with delivery.running() as progress:
            insert(6)
            wait_for(lambda: ids()[7:] == [6], progress.current)
    (entry,) = json.loads((delivery.data / "resets.json").read_text())
    assert (entry["by"], entry["start"]) == ("ann", str(places[1]))
    audited = [json.loads(line) for line in (delivery.data / audit.FILE).read_text().splitlines()]
    assert [(each["action"], each["position"]) for each in audited] == [
        ("pipeline.rewind", str(places[1]))
    ]


def test_a_failed_pipeline_skips_the_change_that_it_failed_at(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, code text)")
    captured = capture(database)
    database.execute("INSERT INTO items VALUES (1, '1')")
    database.execute("INSERT INTO items VALUES (2, 'two')")
    captured.catch_up()
    broken = captured.log.end().position
    database.execute("INSERT INTO items VALUES (3, '3')")
    captured.catch_up()
    with HttpReceiver() as receiver:
        sink = {"type": "http", "url": receiver.url, "allow_private": True}
        delivery = deliver(captured, to=sink, where="after.code::int > 0", shape="plain")
        with delivery.running() as progress:
            wait_for(lambda: progress.figures.state == "failed", progress.current)
            assert receiver.requests == []
            ControlFile(delivery.data, delivery.name).move("skip", broken, user="ann")
            wait_for(lambda: len(receiver.requests) == 1, progress.current)
            assert json.loads(receiver.requests[0].body)["after"]["id"] == 3
            wait_for(lambda: progress.figures.state == "running", progress.current)


def test_a_move_that_is_not_possible_is_refused_and_the_pipeline_goes_on(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    """GIVEN a position beyond the log THEN nothing is moved."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    captured = capture(database)
    captured.catch_up()
    delivery = deliver(captured)
    control = ControlFile(delivery.data, delivery.name)
    with delivery.running() as progress:
        beyond = Position.parse("FFFF/0.0")
        control.move("skip", beyond, user="ann")
        wait_for(lambda: control.moved().moves == 1, progress.current)
        assert "the log ends at" in control.moved().refusal
        database.execute("INSERT INTO items VALUES (1)")
        captured.catch_up()
        wait_for(lambda: progress.figures.events == 1, progress.current)
    assert not (delivery.data / "resets.json").exists()
    assert len(delivery.received()) == 1


def test_the_command_shows_what_a_move_means_and_asks(
    database: Database, capture: Capturing, deliver: Delivering, tmp_path: Path
) -> None:
    """GIVEN a pipeline that does not run THEN the command orders a move for its next start, and
    refuses one in the wrong direction."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    captured = capture(database)
    database.execute("INSERT INTO items SELECT generate_series(1, 5)")
    captured.catch_up()
    delivery = deliver(captured)
    delivery.run()
    path = tmp_path / "tailrace.yml"
    sink = {"type": "nats", "url": delivery.server.url}
    document = {
        "log": {"path": str(delivery.log)},
        "data": str(delivery.data),
        "pipelines": {delivery.name: {"sink": sink}},
    }
    path.write_text(json.dumps(document))
    command = ["pipeline", "rewind", delivery.name, "--to", "earliest", "-c", str(path)]
    asked = call(*command)
    assert "6 changes are delivered again" in asked.stdout  # With a mark of the test's capture.
    assert ControlFile(delivery.data, delivery.name).read().moves == 0
    done = call(*command, "--yes")
    assert done.returncode == 0, done.stderr
    assert "It takes effect when they do" in done.stdout
    ahead = call("pipeline", "skip", delivery.name, "earliest", "--yes", "-c", str(path))
    assert ahead.returncode != 0
    assert "is past" in ahead.stderr
    event = call("pipeline", "skip", delivery.name, "00000000ffffffff-0", "--yes", "-c", str(path))
    assert "the log ends at" in event.stderr
    entries = (delivery.data / audit.FILE).read_text().splitlines()
    assert [json.loads(each)["action"] for each in entries] == ["pipeline.rewind"]
