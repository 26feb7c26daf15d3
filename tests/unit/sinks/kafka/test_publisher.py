"""The publisher's timing rules, with a clock that the test moves. No broker is needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from tailrace.errors import SinkFencedError, SinkRefusedError, SinkUnreachableError
from tailrace.sinks.kafka import publisher as module
from tailrace.sinks.kafka.publisher import Publisher, _StallTimer
from tailrace.sinks.kafka.settings import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.errors import TailraceError


class Clock:
    """A clock that stands still until a test sets it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def stalled() -> TailraceError:
    return SinkUnreachableError("nothing acknowledged")


def test_a_queue_that_does_not_move_is_stalled_after_the_timeout(clock: Clock) -> None:
    timer = _StallTimer(2.0, clock)
    timer.check(5, stalled)
    clock.now += 2.0
    timer.check(5, stalled)
    clock.now += 0.1
    with pytest.raises(SinkUnreachableError):
        timer.check(5, stalled)


def test_every_acknowledgement_restarts_the_timeout(clock: Clock) -> None:
    timer = _StallTimer(2.0, clock)
    for remaining in (5, 4, 3, 2, 1):
        timer.check(remaining, stalled)
        clock.now += 1.9
    timer.check(1, stalled)


@pytest.fixture
def publisher(clock: Clock) -> Iterator[Publisher]:
    settings = KafkaSink(type="kafka", bootstrap="127.0.0.1:1", transaction_timeout_s=10)
    publisher = Publisher(settings, name="test", clock=clock)
    yield publisher
    publisher._began_s = None
    publisher.close()


def test_fencing_stays_fencing_within_the_transaction_timeout(
    publisher: Publisher, clock: Clock
) -> None:
    fenced = SinkFencedError("fenced")
    assert publisher.transaction_age_s is None
    assert publisher.explain(fenced) is fenced
    publisher._began_s = clock.now
    clock.now += 10
    assert publisher.transaction_age_s == 10
    assert publisher.explain(fenced) is fenced


def test_fencing_after_the_transaction_timeout_is_an_abort_by_kafka(
    publisher: Publisher, clock: Clock
) -> None:
    publisher._began_s = clock.now
    clock.now += 10.1
    fenced = SinkFencedError("fenced")
    explained = publisher.explain(fenced)
    assert isinstance(explained, SinkUnreachableError)
    assert str(explained) == "Kafka aborted the transaction after 10 s"
    assert explained.__cause__ is fenced
    other = SinkUnreachableError("away")
    assert publisher.explain(other) is other


@pytest.mark.parametrize(
    ("partitions", "error", "text"),
    [(None, SinkRefusedError, "no topic orders"), (3, SinkUnreachableError, "left the cluster")],
)
def test_a_dropped_partition_names_its_reason(
    publisher: Publisher,
    monkeypatch: pytest.MonkeyPatch,
    partitions: int | None,
    error: type[TailraceError],
    text: str,
) -> None:
    cluster = SimpleNamespace(partitions=lambda topics: dict.fromkeys(topics, partitions))
    monkeypatch.setattr(module, "Cluster", lambda *_, **__: cluster)
    message: Any = SimpleNamespace(topic=lambda: "orders", value=lambda: b"1", key=lambda: None)
    publisher._on_failure(b"1", KafkaError(KafkaError._DESTROY), message)
    with pytest.raises(error, match=text):
        publisher._raise_failures()


class FailedTransaction:
    """A producer whose transaction must be aborted. A call that it refuses gets the reason."""

    def __init__(self, reason: int) -> None:
        self.error = KafkaError(reason, "no rights for the topic")

    def begin_transaction(self) -> None:
        raise KafkaException(self.error)

    def produce(self, *_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._STATE))

    def flush(self, _timeout_s: float) -> int:
        return 0


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, SinkRefusedError),
        (KafkaError._STATE, SinkUnreachableError),
    ],
)
def test_the_reason_of_a_failed_transaction(
    publisher: Publisher, clock: Clock, reason: int, kind: type[TailraceError]
) -> None:
    """GIVEN messages that were dropped because their transaction failed WHEN the publisher reports
    them, or sends more THEN the error is the reason of the transaction, if there is one."""
    message: Any = SimpleNamespace(topic=lambda: "t", value=lambda: b"v", key=lambda: None)
    real = publisher._producer
    publisher._producer = cast("Any", FailedTransaction(reason))
    try:
        publisher._began_s = clock.now
        publisher._on_failure(b"1", KafkaError(KafkaError._PURGE_QUEUE), message)
        with pytest.raises(kind):
            publisher._raise_failures()
        with pytest.raises(kind):
            publisher.put("t", 0, key=b"k", value=b"v")
    finally:
        publisher._producer = real
