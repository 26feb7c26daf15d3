"""Transactions as atomic batches: a stream holds all of a transaction or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import structlog

from tailrace.errors import SinkFullError, SinkRefusedError, SinkUnreachableError
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.nats.sink import JetStream
from tests.integration.nats.streams import altered, batch, ids, opened, sink_settings
from tests.unit.sinks.rows import message_id

if TYPE_CHECKING:
    from tailrace.sinks.nats.settings import NatsSink
    from tailrace.testing import EmbeddedNats


@pytest.fixture
def atomic(server: EmbeddedNats) -> NatsSink:
    return sink_settings(server.url, stream={"atomic": True}, atomic="transaction")


@pytest.mark.parametrize("per", [1, 2, 7, 1000])
def test_transactions_arrive_whole_and_in_order(atomic: NatsSink, per: int) -> None:
    with opened(atomic) as sink:
        for start in range(0, 4200, 300):
            sink.write(batch(atomic, range(start, start + 300), per=per))
        assert sink.flush().messages == 4200
    assert ids(atomic) == [message_id(n, per=per) for n in range(4200)]


def test_a_transaction_that_does_not_fit_leaves_nothing(atomic: NatsSink) -> None:
    atomic = altered(atomic, max_messages=25)
    with opened(atomic) as sink:
        sink.write(batch(atomic, range(20), per=20))
        sink.flush()
        sink.write(batch(atomic, range(20, 40), per=20))
        with pytest.raises(SinkFullError):
            sink.flush()
    assert len(ids(atomic)) == 20


def test_a_transaction_that_is_too_large_is_published_in_order(atomic: NatsSink) -> None:
    with structlog.testing.capture_logs() as logs, opened(atomic) as sink:
        sink.write(batch(atomic, range(3500), per=3000))
        assert sink.flush().messages == 3500
    assert ids(atomic) == [message_id(n, per=3000) for n in range(3500)]
    assert "nats.transaction_not_atomic" in [line["event"] for line in logs]


def test_a_transaction_stored_by_another_attempt_is_read_back(atomic: NatsSink) -> None:
    with opened(atomic) as sink:
        with opened(atomic) as other:
            other.write(batch(atomic, range(10), per=10))
            other.flush()
        sink.write(batch(atomic, range(20), per=10))
        with pytest.raises(SinkUnreachableError, match="duplicate"):
            sink.flush()
        sink.open(ORIGIN)
        sink.write(batch(atomic, range(20), per=10))
        assert sink.flush().duplicates >= 10
    assert ids(atomic) == [message_id(n, per=10) for n in range(20)]


def test_a_stream_without_atomic_batches_is_refused(server: EmbeddedNats) -> None:
    settings = sink_settings(server.url, atomic="transaction")
    with pytest.raises(SinkRefusedError, match="does not allow atomic"):
        JetStream(settings, Lane(pipeline="test")).open(ORIGIN)


def test_a_window_smaller_than_a_transaction(atomic: NatsSink) -> None:
    atomic = atomic.model_copy(update={"max_outstanding": 10})
    with opened(atomic) as sink:
        sink.write(batch(atomic, range(2000), per=500))
        assert sink.flush().messages == 2000
    assert ids(atomic) == [message_id(n, per=500) for n in range(2000)]
