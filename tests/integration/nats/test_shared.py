"""Several pipelines in one stream: each reads back its own messages and no others."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import DivergedError
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.nats.sink import JetStream
from tests.chance import seeds
from tests.integration.nats.streams import altered, batch, forget_ids, held, request
from tests.jetstream import received
from tests.unit.sinks.rows import message_id, position

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.sinks.contract import Receipt
    from tailrace.sinks.nats.settings import NatsSink

ONE, TWO = (Lane(pipeline="bridge", slot=slot, history=slot * 2) for slot in ("one", "two"))
"""Two bridges: pipelines of the same name, logs of their own."""


def subject(settings: NatsSink, lane: Lane) -> bytes:
    return settings.stream.subjects[0].replace(">", f"{lane.slot}.insert").encode()


def deliver(settings: NatsSink, lane: Lane, numbers: range, *, after: int | None = None) -> Receipt:
    """Store messages after a checkpoint, as a new process does: it knows of no earlier attempt."""
    sink = JetStream(settings, lane)
    try:
        sink.open(ORIGIN if after is None else position(after))
        sink.write(batch(settings, numbers, destination=subject(settings, lane)))
        return sink.flush()
    finally:
        sink.close()


@pytest.fixture
def stream(settings: NatsSink) -> NatsSink:
    """Ids are forgotten at once: reading back alone prevents duplicates."""
    return altered(settings, duplicate_window_s=0.1)


def test_a_pipeline_that_is_behind_does_not_hide_stored_messages(stream: NatsSink) -> None:
    """GIVEN a batch that is stored and not in the checkpoint
    WHEN another pipeline, which is far behind, stores more than a stride after it
    THEN the next attempt finds the batch."""
    deliver(stream, TWO, range(300))
    deliver(stream, ONE, range(1000, 1300))
    assert deliver(stream, ONE, range(1300, 2000), after=1299).messages == 700
    deliver(stream, TWO, range(300, 900), after=299)
    forget_ids(stream)
    again = deliver(stream, ONE, range(1300, 2100), after=1299)
    assert (again.messages, again.duplicates) == (100, 700)
    assert deliver(stream, TWO, range(300, 950), after=299).duplicates == 600
    assert not repeated(stream)


def repeated(settings: NatsSink) -> list[tuple[bytes, bytes]]:
    """Messages that the stream holds more than once."""
    counts = Counter((place, name) for place, name, _ in held(settings))
    return [message for message, count in counts.items() if count > 1]


def test_messages_name_their_pipeline_only_in_a_shared_stream(stream: NatsSink) -> None:
    url, name = stream.url.get_secret_value(), stream.stream.name
    deliver(stream, ONE, range(3))
    deliver(stream, TWO, range(10, 13))
    deliver(stream, ONE, range(3, 6), after=2)
    owners = [each.headers.get("Tailrace-Pipeline") for each in received(url, name)]
    assert owners == [None] * 3 + ["two.bridge"] * 3 + ["one.bridge"] * 3


def test_messages_from_before_the_stream_was_shared_are_read_back(stream: NatsSink) -> None:
    deliver(stream, ONE, range(1000, 1100))
    deliver(stream, ONE, range(1100, 1200), after=1099)
    deliver(stream, TWO, range(500))
    forget_ids(stream)
    assert deliver(stream, ONE, range(1100, 1250), after=1099).duplicates == 100
    assert not repeated(stream)


def test_two_processes_with_one_slot_name_are_refused(stream: NatsSink) -> None:
    """Nothing tells them from one whose log was lost."""
    deliver(stream, ONE, range(3))
    same = Lane(pipeline="bridge", slot="one", history="other")
    with pytest.raises(DivergedError) as caught:
        deliver(stream, same, range(3))
    assert "a slot with a name of its own" in caught.value.hint


def test_subjects_of_their_own_need_no_names(stream: NatsSink) -> None:
    """GIVEN pipelines whose subjects name their databases THEN messages are as ever."""
    prefix = stream.stream.subjects[0].removesuffix(">")
    for lane in (ONE, TWO):
        sink = JetStream(stream, lane, subjects=f"{prefix}{lane.slot}.*")
        sink.open(ORIGIN)
        sink.write(batch(stream, range(3), destination=subject(stream, lane)))
        if lane is ONE:
            sink.flush()
        sink.close()
    metadata = request(stream, f"STREAM.INFO.{stream.stream.name}", None)["config"]["metadata"]
    assert metadata["tailrace.history.two.bridge"].endswith(f" {prefix}two.*")
    headers = [each.headers for each in received(stream.url.get_secret_value(), stream.stream.name)]
    assert all("Tailrace-Pipeline" not in each for each in headers)


@pytest.mark.parametrize("seed", seeds(3, short=1))
@pytest.mark.long
def test_attempts_that_are_cut_off_beside_another_pipeline(stream: NatsSink, seed: int) -> None:
    """GIVEN two pipelines, one far behind the other, that store at the same time
    WHEN one is cut off again and again after it has stored a batch, before its checkpoint
    THEN each message is in the stream once, and each pipeline's are in order."""
    rng = random.Random(seed)
    stop = threading.Event()
    first, ends = {ONE: 100_000, TWO: 0}, {}

    def publish(lane: Lane, more: Callable[[], bool]) -> None:
        done, checkpoint = first[lane], None
        while more():
            size = rng.choice([1, 10, 300])
            if lane is ONE and rng.random() < 0.7:
                deliver(stream, lane, range(done, done + size), after=checkpoint)
                forget_ids(stream)
            deliver(stream, lane, range(done, done + size + 5), after=checkpoint)
            done += size + 5
            checkpoint = done - 1
        ends[lane] = done

    for lane in first:
        deliver(stream, lane, range(0))
    other = threading.Thread(target=publish, args=(TWO, lambda: not stop.wait(0.2)))
    other.start()
    turns = iter(range(12))
    try:
        publish(ONE, lambda: next(turns, None) is not None)
    finally:
        stop.set()
        other.join()
    assert not repeated(stream)
    for lane in (ONE, TWO):
        own = [name for place, name, _ in held(stream) if place == subject(stream, lane)]
        assert own == [message_id(number) for number in range(first[lane], ends[lane])]
