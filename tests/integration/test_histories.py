"""Positions are of one log: a checkpoint or a sink of another one is DIVERGED until a reset."""

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from tailrace.jetstream.claim import claims
from tailrace.jetstream.client import stream_info
from tailrace.log import retention
from tailrace.log.reader import Earliest
from tailrace.log.store import LocalStore
from tailrace.pipeline.reset import plan
from tailrace.run.reset import carry_out
from tailrace.sinks.nats.settings import NatsSink
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.testing import EmbeddedNats
    from tests.fix_capture import Captured
    from tests.fix_pipeline import Delivery
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]
    Delivering = Callable[..., Delivery]

# The server must forget ids before a reset publishes them again.
SHORT_WINDOW = {"duplicate_window_s": 0.1}


def reset(delivery: Delivery) -> None:
    carry_out(
        delivery.config,
        plan(delivery.config, delivery.name, Earliest()),
        now=datetime(2026, 1, 31, tzinfo=UTC),
    )


def delivered_once(
    database: Database, capture: Capturing, deliver: Delivering
) -> tuple[Captured, Delivery]:
    """A pipeline that has delivered the row 1."""
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    captured = capture(database)
    delivery = deliver(captured)
    delivery.pipeline["sink"]["stream"] |= SHORT_WINDOW
    database.execute("INSERT INTO users VALUES (1)")
    captured.catch_up()
    assert delivery.run().events == 1
    return captured, delivery


def numbers(delivery: Delivery) -> list[int]:
    return [message.json["data"]["id"] for message in delivery.received()]


def test_a_new_log_is_delivered_after_a_reset(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    """GIVEN a pipeline whose log was replaced WHEN it starts THEN it is DIVERGED, and after
    `tailrace reset` it delivers the new log."""
    captured, delivery = delivered_once(database, capture, deliver)
    captured.replace_log()
    database.execute("INSERT INTO users VALUES (2), (3)")
    captured.catch_up()
    figures = delivery.run()
    assert (figures.state, figures.code) == ("failed", "DIVERGED")
    assert "belongs to the log" in figures.message
    assert numbers(delivery) == [1]
    # Meanwhile the new log keeps everything that the reset may ask for.
    pins = retention.pins(LocalStore(captured.folder))
    assert pins == {delivery.name: captured.log.earliest()}
    reset(delivery)
    assert delivery.run().state == "stopped"
    assert numbers(delivery) == [1, 2, 3]
    database.execute("INSERT INTO users VALUES (4)")
    captured.catch_up()
    delivery.run()
    assert numbers(delivery) == [1, 2, 3, 4]


def test_a_reset_is_recorded_before_the_first_change(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    """A copy that is made in between would be of the earlier history, and DIVERGED later."""
    captured, delivery = delivered_once(database, capture, deliver)
    before = history(delivery)
    captured.replace_log()
    captured.catch_up()
    reset(delivery)
    with delivery.running() as progress:
        wait_for(lambda: history(delivery) != before, progress.current)
        wait_for(lambda: progress.figures.state == "running", progress.current)
    assert history(delivery).startswith(f"{captured.log.id}+")
    assert numbers(delivery) == [1]


def history(delivery: Delivery) -> str:
    """The history that the stream names."""
    sink = delivery.config.pipelines[delivery.name].sink
    assert isinstance(sink, NatsSink)
    info = asyncio.run(stream_info(sink, sink.stream.name))
    assert info is not None
    [claim] = claims(info).values()
    return claim.history


def test_a_stream_of_another_log_is_refused(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    """GIVEN a data folder that was lost together with its log WHEN the pipeline begins anew
    THEN it does not take the stream's messages for its own."""
    captured, delivery = delivered_once(database, capture, deliver)
    captured.replace_log()
    shutil.rmtree(delivery.data)
    database.execute("INSERT INTO users VALUES (2)")
    captured.catch_up()
    figures = delivery.run()
    assert (figures.state, figures.code) == ("failed", "DIVERGED")
    assert "holds messages of pipeline test from the log" in figures.message
    reset(delivery)
    assert delivery.run().state == "stopped"
    assert numbers(delivery) == [1, 2]


def test_an_unreachable_sink_does_not_let_the_log_expire(
    database: Database,
    capture: Capturing,
    deliver: Delivering,
    server: EmbeddedNats,
) -> None:
    """GIVEN a new pipeline whose sink is down WHEN retention runs THEN every change stays, and
    arrives once the sink is up."""
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    settings = {"segment_bytes": 65_536, "keep_hours": 0, "keep_bytes": 0}
    captured = capture(database, log=settings)
    database.execute("INSERT INTO users SELECT generate_series(1, 2000)")
    captured.catch_up()
    delivery = deliver(captured, sink={"url": server.url})
    server.kill()
    limits = retention.Limits(keep_hours=0, keep_bytes=0)
    with delivery.running() as progress:
        wait_for(lambda: progress.figures.state == "retrying", progress.current)
        database.execute("INSERT INTO users SELECT generate_series(2001, 4000)")
        captured.catch_up()
        expired = retention.expired(LocalStore(captured.folder), limits, now_micros=(1 << 63) - 1)
        assert expired == []
        server.start()
        wait_for(lambda: progress.figures.events == 4000, progress.current)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_capture_keeps_the_log_for_pipelines_that_have_never_run(
    database: Database, capture: Capturing, deliver: Delivering, start: str
) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    captured = capture(database, log={"segment_bytes": 65_536, "keep_hours": 0, "keep_bytes": 0})
    delivery = deliver(captured, start=start)
    captured.config = captured.config.model_copy(update={"pipelines": delivery.config.pipelines})
    for _ in range(3):
        database.execute("DELETE FROM users")
        database.execute("INSERT INTO users SELECT generate_series(1, 2000)")
        captured.catch_up()
    segments = len(captured.log.segments())
    captured.catch_up()
    first = captured.log.header(captured.log.segments()[0]).sequence
    assert (first == 1) is (start == "earliest"), segments
