"""Messages that a stream refuses: the error names them, and no other message is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import structlog

from tailrace.errors import (
    PoisonedError,
    SinkError,
    SinkFullError,
    SinkRefusedError,
    SinkUnreachableError,
)
from tailrace.jetstream.stream import stream_info
from tailrace.sinks.contract import Receipt
from tailrace.sinks.outcome import Verdict
from tailrace.testing import EmbeddedNats
from tests.integration.nats.streams import (
    altered,
    batch,
    deliver,
    expected,
    held,
    ids,
    make_stream,
    opened,
    request,
    sink_settings,
    subject,
)
from tests.unit.sinks.rows import message_id, payload, position

if TYPE_CHECKING:
    from tailrace.sinks.nats.settings import NatsSink


def test_a_full_stream_is_an_error_and_loses_nothing(settings: NatsSink) -> None:
    settings = altered(settings, max_messages=700)
    with opened(settings) as sink:
        sink.write(batch(settings, range(500)))
        sink.flush()
        with pytest.raises(SinkFullError, match=message_id(700).decode()):
            deliver(sink, [batch(settings, range(500, 1000))])
    config = stream_info(settings, settings.stream.name)["config"] | {"max_msgs": -1}
    assert "error" not in request(settings, f"STREAM.UPDATE.{settings.stream.name}", config)
    with opened(settings, position(499)) as sink:
        sink.write(batch(settings, range(500, 1000)))
        assert sink.flush().duplicates == 200
    assert held(settings) == expected(settings, range(1000))


def test_damaged_order_is_counted_and_logged(settings: NatsSink) -> None:
    """A large message does not fit; a smaller one after it does."""
    settings = altered(settings, max_bytes=100_000)
    large = pa.concat_batches(
        [
            batch(settings, range(2)),
            batch(settings, [2], size=200_000),
            batch(settings, range(3, 10)),
        ]
    )
    with (
        structlog.testing.capture_logs() as logs,
        opened(settings) as sink,
        pytest.raises(SinkFullError, match="7 later messages were stored before it"),
    ):
        deliver(sink, [large])
    (line,) = [line for line in logs if line["event"] == "nats.order_damaged"]
    assert line["log_level"] == "error"
    assert line["stored_later"] == 7


def test_a_message_too_large_is_named_before_it_is_sent(settings: NatsSink) -> None:
    make_stream(settings, max_msg_size=1000)
    with opened(settings) as sink:
        good, bad, later = (
            batch(settings, range(20)),
            batch(settings, [20], size=5000),
            batch(settings, range(21, 30)),
        )
        refused = sink.inspect(pa.concat_batches([good, bad, later]))
        assert list(refused) == [20]
        assert refused[20].verdict is Verdict.REFUSED
        assert refused[20].code == PoisonedError.code
        assert "bytes with its header, the limit is 1000" in refused[20].reason
    assert held(settings) == []


def test_a_limit_that_was_changed_applies_to_the_next_batch(settings: NatsSink) -> None:
    """The connection stays open."""
    make_stream(settings, max_msg_size=-1)
    with opened(settings) as sink:
        sink.write(batch(settings, range(3)))
        sink.flush()
        for limit, refused in ((1000, [0]), (-1, [])):
            config = stream_info(settings, settings.stream.name)["config"]
            request(
                settings, f"STREAM.UPDATE.{settings.stream.name}", config | {"max_msg_size": limit}
            )
            sink.open(position(2))
            assert list(sink.inspect(batch(settings, [3], size=5000))) == refused


def test_a_limit_that_was_lowered_within_a_batch(settings: NatsSink) -> None:
    """GIVEN a message that the stream refuses although it had taken it before THEN the batch is
    sent again, and `inspect` finds the message."""
    make_stream(settings, max_msg_size=-1)
    with opened(settings) as sink:
        large = batch(settings, [3], size=5000)
        assert sink.inspect(large) == {}
        sink.write(batch(settings, range(3)))
        sink.flush()
        config = stream_info(settings, settings.stream.name)["config"]
        request(settings, f"STREAM.UPDATE.{settings.stream.name}", config | {"max_msg_size": 1000})
        sink.write(large)
        with pytest.raises(SinkUnreachableError, match="took more when the batch began"):
            sink.flush()
        sink.open(position(2))
        assert list(sink.inspect(large)) == [0]
        sink.write(large)
        with pytest.raises(PoisonedError):
            sink.flush()
    assert held(settings) == expected(settings, range(3))


def test_the_limit_of_the_server_applies() -> None:
    with EmbeddedNats(config="max_payload: 2000") as server:
        settings = sink_settings(server.url)
        exact = 2000 - len(payload(0)) - len(message_id(0)) - 27
        with opened(settings) as sink:
            sink.write(batch(settings, [0], size=exact))
            assert sink.flush().messages == 1
            refused = sink.inspect(batch(settings, [1], size=exact + 1))
            assert "has 2001 bytes" in refused[0].reason
        assert len(ids(settings)) == 1


@pytest.mark.parametrize(
    ("destination", "kind"),
    [(b"elsewhere.x", SinkRefusedError), (b"cdc bad", PoisonedError), (b"a\r\nb", PoisonedError)],
)
def test_a_wrong_destination_is_named_before_it_is_sent(
    settings: NatsSink, destination: bytes, kind: type[SinkError]
) -> None:
    with opened(settings) as sink:
        refused = sink.inspect(
            pa.concat_batches(
                [batch(settings, range(20)), batch(settings, [20, 21], destination=destination)]
            )
        )
    assert {row: each.code for row, each in refused.items()} == {20: kind.code, 21: kind.code}
    assert held(settings) == []


def test_an_id_with_a_line_break_is_refused(settings: NatsSink) -> None:
    good = batch(settings, range(3))
    names = pa.array([message_id(0), b"1-a\r\nNats-Rollup: all-1", message_id(2)], pa.binary())
    with opened(settings) as sink:
        refused = sink.inspect(good.set_column(1, good.schema.field(1), names))
    assert {row: each.reason for row, each in refused.items()} == {
        1: "its id contains a line break"
    }
    assert held(settings) == []


def test_a_deleted_stream_is_an_error_that_names_the_subject(settings: NatsSink) -> None:
    with opened(settings) as sink:
        assert request(settings, f"STREAM.DELETE.{settings.stream.name}", None)["success"]
        sink.write(batch(settings, range(10)))
        with pytest.raises(SinkRefusedError, match=subject(settings).decode()):
            sink.flush()


def test_ids_of_another_pipeline_are_an_error(settings: NatsSink) -> None:
    """Without this, the server's own deduplication would drop the second pipeline's messages."""
    with opened(settings) as sink:
        sink.write(batch(settings, range(10)))
        sink.flush()
    other = subject(settings).replace(b"orders", b"copies")
    with opened(settings) as sink:
        sink.write(batch(settings, range(10), destination=other))
        with pytest.raises(SinkRefusedError, match="holds that id under"):
            sink.flush()


def test_late_messages_of_a_broken_connection_are_not_a_collision(settings: NatsSink) -> None:
    with opened(settings) as sink:
        with opened(settings) as other:
            other.write(batch(settings, range(10)))
            other.flush()
        sink.write(batch(settings, range(15)))
        assert sink.flush() == Receipt(
            messages=5, bytes=sum(len(payload(n)) for n in range(15)), duplicates=10
        )
