"""Claims: messages of another history are neither skipped nor taken for delivered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import DivergedError, SinkUnreachableError
from tailrace.position import ORIGIN, Position
from tailrace.sinks.contract import Lane
from tailrace.sinks.nats.sink import JetStream
from tests.integration.nats.streams import (
    altered,
    batch,
    forget_ids,
    held,
    make_stream,
    opened,
    request,
)
from tests.unit.sinks.rows import payload, position
from tests.waiting import wait_for

if TYPE_CHECKING:
    from tailrace.sinks.contract import Receipt
    from tailrace.sinks.nats.settings import NatsSink


def write(
    settings: NatsSink,
    history: str,
    numbers: range,
    *,
    size: int = 10,
    after: Position = ORIGIN,
    name: str = "test",
) -> Receipt:
    sink = JetStream(settings, Lane(pipeline=name, history=history))
    try:
        sink.open(after)
        sink.write(batch(settings, numbers, size=size))
        return sink.flush()
    finally:
        sink.close()


def claims(settings: NatsSink) -> dict[str, str]:
    info = request(settings, f"STREAM.INFO.{settings.stream.name}", None)
    metadata = info["config"]["metadata"]
    return {key: text for key, text in metadata.items() if key.startswith("tailrace.history.")}


def test_a_reset_delivers_positions_that_the_stream_already_holds(settings: NatsSink) -> None:
    """GIVEN a database that was restored to an earlier moment, so that LSNs are used again
    WHEN the pipeline is reset THEN its messages are stored, although their ids are known."""
    settings = altered(settings, duplicate_window_s=10)
    write(settings, "a", range(10), size=10)
    with pytest.raises(SinkUnreachableError, match="remembers the message ids"):
        write(settings, "b+1", range(10), size=20)

    def delivered() -> bool:
        try:
            return write(settings, "b+1", range(10), size=20).messages == 10
        except SinkUnreachableError:
            return False

    wait_for(delivered, "the duplicate window to pass")
    assert [stored for _, _, stored in held(settings)] == [
        payload(number, size) for size in (10, 20) for number in range(10)
    ]


def test_an_interrupted_batch_after_a_reset_is_read_back(settings: NatsSink) -> None:
    settings = altered(settings, duplicate_window_s=0.1)
    write(settings, "a", range(10))
    wait_for(lambda: _opens(settings, "b+1"), "the duplicate window to pass")
    write(settings, "b+1", range(5))
    assert write(settings, "b+1", range(8)).duplicates == 5
    assert len(held(settings)) == 18


def _opens(settings: NatsSink, history: str) -> bool:
    try:
        write(settings, history, range(0))
    except SinkUnreachableError:
        return False
    return True


def test_without_a_reset_another_history_is_refused(settings: NatsSink) -> None:
    write(settings, "a", range(10))
    with pytest.raises(DivergedError, match="from the log a, but this log is b"):
        write(settings, "b", range(10))
    assert len(held(settings)) == 10


def test_a_lost_checkpoint_delivers_nothing_twice(settings: NatsSink) -> None:
    settings = altered(settings, duplicate_window_s=0.1)
    write(settings, "a", range(10))
    assert write(settings, "a", range(12)).duplicates == 10


def test_messages_before_the_first_claim_are_not_the_pipelines(settings: NatsSink) -> None:
    """GIVEN a stream that an earlier system filled WHEN a new pipeline publishes the same ids
    THEN they are stored."""
    settings = altered(settings, duplicate_window_s=0.1)
    with opened(settings) as sink:
        sink.write(batch(settings, range(10)))
        sink.flush()
    assert claims(settings) == {}
    forget_ids(settings)
    assert write(settings, "a", range(10)).messages == 10


def test_a_pipeline_whose_claim_was_lost_reads_everything_back(settings: NatsSink) -> None:
    settings = altered(settings, duplicate_window_s=0.1)
    write(settings, "a", range(10))
    config = request(settings, f"STREAM.INFO.{settings.stream.name}", None)["config"]
    config["metadata"] = {}
    assert "error" not in request(settings, f"STREAM.UPDATE.{settings.stream.name}", config)
    assert write(settings, "a", range(5, 12), after=position(4)).duplicates == 5


def test_an_existing_stream_keeps_its_settings(settings: NatsSink) -> None:
    """Only metadata is added, also when two pipelines share the stream."""
    make_stream(settings, max_age=3600 * 10**9, metadata={"owner": "ops"})
    before = request(settings, f"STREAM.INFO.{settings.stream.name}", None)["config"]
    write(settings, "a", range(3), name="one")
    write(settings, "b", range(10, 13), name="two")
    after = request(settings, f"STREAM.INFO.{settings.stream.name}", None)["config"]
    assert after["metadata"]["owner"] == "ops"
    assert claims(settings) == {
        "tailrace.history.one": "a 0 0 >",
        "tailrace.history.two": "b 3 0 >",
    }
    assert json.dumps(before | {"metadata": None}) == json.dumps(after | {"metadata": None})


def test_a_duplicate_with_another_payload_is_an_error(settings: NatsSink) -> None:
    """GIVEN two databases that publish to one stream WHEN the server drops a message as a
    duplicate of the other's THEN the pipeline stops: the message is not delivered."""
    write(settings, "a", range(20), size=10, name="one")
    with pytest.raises(DivergedError, match="it holds another message with that id"):
        write(settings, "b", range(20), size=20, name="two")


def test_every_duplicate_is_compared(settings: NatsSink) -> None:
    """GIVEN duplicates of which only the last one has another payload THEN it is found."""
    write(settings, "a", range(20), name="one")
    sink = JetStream(settings, Lane(pipeline="two", history="b"))
    try:
        sink.open(ORIGIN)
        sink.write(batch(settings, range(19)))
        sink.write(batch(settings, range(19, 20), size=20))
        with pytest.raises(DivergedError, match="it holds another message with that id"):
            sink.flush()
    finally:
        sink.close()
