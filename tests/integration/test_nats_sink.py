"""The NATS sink against a real server: what is promised holds, whatever is cut, killed or full.

What a stream holds is read by the official client, which shares no code with the sink.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import nats
import pyarrow as pa
import pytest
import structlog
from nats.js.api import AckPolicy, ConsumerConfig

from tailrace.config import NatsSink
from tailrace.errors import (
    PoisonedError,
    SinkError,
    SinkFullError,
    SinkRefusedError,
    SinkUnreachableError,
)
from tailrace.position import ORIGIN, Position
from tailrace.sinks.contract import Receipt
from tailrace.sinks.nats import JetStream, inspect, stream_info
from tailrace.sinks.nats.line import Line
from tailrace.testing import EmbeddedNats, TcpProxy
from tests.unit.sinks.rows import message_id, payload, position, rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_streams = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedNats]:
    with EmbeddedNats() as running:
        yield running


@pytest.fixture
def settings(server: EmbeddedNats) -> NatsSink:
    return sink_settings(server.url)


def sink_settings(url: str, *, stream: dict[str, Any] | None = None, **given: Any) -> NatsSink:
    """Settings with a stream of the test's own."""
    number = next(_streams)
    own = {"name": f"CDC{number}", "subjects": (f"cdc{number}.>",)} | (stream or {})
    defaults = {"subject": f"cdc{number}.{{table}}", "timeout_s": 20}
    values = defaults | {"type": "nats", "url": url, "stream": own} | given
    return NatsSink.model_validate(values)


def subject(settings: NatsSink) -> bytes:
    return settings.stream.subjects[0].replace(">", "orders.insert").encode()


def batch(settings: NatsSink, numbers: range | list[int], **given: Any) -> pa.RecordBatch:
    return rows(numbers, **({"destination": subject(settings)} | given))


def held(settings: NatsSink, url: str = "") -> list[tuple[bytes, bytes, bytes]]:
    """Subject, id and payload of everything in the stream, read by the official client."""

    async def read() -> list[tuple[bytes, bytes, bytes]]:
        client = await nats.connect(url or settings.url)
        try:
            js = client.jetstream()
            left = (await js.stream_info(settings.stream.name)).state.messages
            config = ConsumerConfig(name="oracle", ack_policy=AckPolicy.NONE)
            await js.add_consumer(settings.stream.name, config)
            pull = await js.pull_subscribe_bind(consumer="oracle", stream=settings.stream.name)
            found: list[tuple[bytes, bytes, bytes]] = []
            while len(found) < left:
                for message in await pull.fetch(min(500, left - len(found)), timeout=20):
                    name = (message.headers or {}).get("Nats-Msg-Id", "")
                    found.append((message.subject.encode(), name.encode(), message.data))
            await js.delete_consumer(settings.stream.name, "oracle")
            return found
        finally:
            await client.close()

    return asyncio.run(read())


def ids(settings: NatsSink) -> list[bytes]:
    return [name for _, name, _ in held(settings)]


def expected(settings: NatsSink, numbers: range) -> list[tuple[bytes, bytes, bytes]]:
    return [(subject(settings), message_id(n), payload(n)) for n in numbers]


def request(settings: NatsSink, api: str, body: object) -> dict[str, Any]:
    line = Line.connect(settings, name="test")
    try:
        return line.ask(f"$JS.API.{api}", body)
    finally:
        line.close()


def make_stream(settings: NatsSink, **given: Any) -> None:
    config = {"name": settings.stream.name, "subjects": list(settings.stream.subjects)} | given
    answer = request(settings, f"STREAM.CREATE.{settings.stream.name}", config)
    assert "error" not in answer, answer


@contextlib.contextmanager
def opened(settings: NatsSink, after: Position = ORIGIN, name: str = "test") -> Iterator[JetStream]:
    sink = JetStream(settings, name=name)
    sink.open(after)
    try:
        yield sink
    finally:
        sink.close()


def deliver(sink: JetStream, batches: Iterable[pa.RecordBatch]) -> Receipt:
    for each in batches:
        sink.write(each)
    return sink.flush()


def test_messages_arrive_as_they_are_and_in_order(settings: NatsSink) -> None:
    with opened(settings) as sink:
        for start in range(0, 9000, 3000):
            sink.write(batch(settings, range(start, start + 3000)))
        receipt = sink.flush()
    assert held(settings) == expected(settings, range(9000))
    assert receipt == Receipt(messages=9000, bytes=sum(len(payload(n)) for n in range(9000)))


def test_the_stream_is_made_as_asked(settings: NatsSink) -> None:
    stream = settings.stream.model_copy(
        update={"max_age_hours": 2.0, "max_bytes": 10**8, "max_messages": 77, "atomic": True}
    )
    settings = settings.model_copy(update={"stream": stream})
    with opened(settings, name="orders"):
        pass
    config = stream_info(settings, stream.name)["config"]
    assert config["subjects"] == list(stream.subjects)
    assert (config["storage"], config["discard"], config["retention"]) == ("file", "new", "limits")
    assert config["max_age"] == 2 * 3600 * 10**9
    assert (config["max_bytes"], config["max_msgs"]) == (10**8, 77)
    assert config["duplicate_window"] == 120 * 10**9
    assert config["allow_atomic"]
    assert config["metadata"]["tailrace.pipeline"] == "orders"


def test_a_stream_that_is_there_is_never_altered(settings: NatsSink) -> None:
    make_stream(settings, storage="file", max_age=60 * 10**9, duplicate_window=10**9)
    before = stream_info(settings, settings.stream.name)["config"]
    with structlog.testing.capture_logs() as logs, opened(settings):
        pass
    assert stream_info(settings, settings.stream.name)["config"] == before
    said = [line["finding"] for line in logs if line["event"] == "nats.stream"]
    assert len(said) == 2
    assert "keeps messages for 60 s" in said[0]
    assert "for 1 s only" in said[1]
    with structlog.testing.capture_logs() as again, opened(settings):
        pass
    assert [line for line in again if line["event"] == "nats.stream"] == []


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"storage": "memory"}, "kept in memory"),
        ({"retention": "interest"}, "nobody has subscribed"),
        ({"no_ack": True}, "does not acknowledge"),
    ],
)
def test_a_stream_that_would_lose_messages_is_refused(
    settings: NatsSink, config: dict[str, Any], reason: str
) -> None:
    make_stream(settings, **config)
    with pytest.raises(SinkRefusedError, match=reason):
        JetStream(settings, name="test").open(ORIGIN)
    assert inspect(settings)[0].severity == "error"


def test_inspecting(settings: NatsSink) -> None:
    assert [one.severity for one in inspect(settings)] == ["info"]
    with opened(settings):
        pass
    assert [one.severity for one in inspect(settings)] == ["ok"]
    gone = settings.model_copy(update={"url": "nats://127.0.0.1:1"})
    (finding,) = inspect(gone)
    assert finding.severity == "error"
    assert "127.0.0.1:1" in finding.finding
    assert finding.fix


def test_a_stream_that_is_not_there_has_no_info(settings: NatsSink) -> None:
    with pytest.raises(SinkRefusedError, match="no stream"):
        stream_info(settings, "NOWHERE")
    with pytest.raises(SinkRefusedError, match="not the name of a stream"):
        stream_info(settings, "A 5\r\nPUB x")


def test_another_pipelines_stream_is_said(settings: NatsSink) -> None:
    with opened(settings, name="first"):
        pass
    with structlog.testing.capture_logs() as logs, opened(settings, name="second"):
        pass
    assert "made for the pipeline first" in logs[0]["finding"]


def test_few_outstanding_is_slow_and_right(settings: NatsSink) -> None:
    settings = settings.model_copy(update={"max_outstanding": 1})
    with opened(settings) as sink:
        sink.write(batch(settings, range(50)))
        sink.flush()
    assert held(settings) == expected(settings, range(50))


def test_the_servers_pings_are_answered() -> None:
    config = 'ping_interval: "50ms"\nping_max: 2'
    with EmbeddedNats(config=config) as server:
        settings = sink_settings(server.url)
        with opened(settings) as sink:
            for start in range(0, 400, 20):
                sink.write(batch(settings, range(start, start + 20)))
                sink.flush()
                time.sleep(0.02)
        assert len(ids(settings)) == 400


# Resuming


def test_resume_skips_what_an_earlier_attempt_stored(settings: NatsSink) -> None:
    """GIVEN an attempt that was cut off, and a window for repeated ids that is long over
    WHEN the same messages come again
    THEN each is there once."""
    stream = settings.stream.model_copy(update={"duplicate_window_s": 0.1})
    settings = settings.model_copy(update={"stream": stream})
    with opened(settings) as sink:
        sink.write(batch(settings, range(300)))
        sink.flush()
        sink.write(batch(settings, range(300, 1000)))
        sink.flush()
    time.sleep(0.5)
    with opened(settings, position(299)) as sink:
        sink.write(batch(settings, range(300, 700)))
        sink.write(batch(settings, range(700, 1500)))
        assert sink.flush() == Receipt(
            messages=500, bytes=sum(len(payload(n)) for n in range(1000, 1500)), duplicates=700
        )
    assert held(settings) == expected(settings, range(1500))


def test_resume_knows_lanes_that_wrote_side_by_side(settings: NatsSink) -> None:
    stream = settings.stream.model_copy(update={"duplicate_window_s": 0.1})
    settings = settings.model_copy(update={"stream": stream})
    even, odd = list(range(0, 400, 2)), list(range(1, 400, 2))
    with opened(settings) as one, opened(settings) as two:
        for start in range(0, 200, 20):
            one.write(batch(settings, even[start : start + 20]))
            one.flush()
            if start < 100:
                two.write(batch(settings, odd[start : start + 20]))
                two.flush()
    time.sleep(0.5)
    with opened(settings) as one, opened(settings) as two:
        one.write(batch(settings, even))
        two.write(batch(settings, odd))
        assert one.flush().duplicates == 200
        assert two.flush().duplicates == 100
    assert sorted(ids(settings)) == sorted(message_id(n) for n in range(400))


def test_resume_passes_over_the_messages_of_others(settings: NatsSink) -> None:
    stream = settings.stream.model_copy(update={"duplicate_window_s": 0.1})
    settings = settings.model_copy(update={"stream": stream})

    async def others() -> None:
        client = await nats.connect(settings.url)
        js = client.jetstream()
        for number in range(30):
            headers = {"Nats-Msg-Id": f"theirs {number}"} if number % 2 else None
            await js.publish(subject(settings).decode(), b"theirs", headers=headers)
        await client.close()

    with opened(settings) as sink:
        sink.write(batch(settings, range(100)))
        sink.flush()
        asyncio.run(others())
        sink.write(batch(settings, range(100, 200)))
        sink.flush()
        asyncio.run(others())
    for number in (3, 110, 150):
        answer = request(settings, f"STREAM.MSG.DELETE.{settings.stream.name}", {"seq": number})
        assert answer["success"]
    time.sleep(0.5)
    with opened(settings, position(99)) as sink:
        sink.write(batch(settings, range(100, 250)))
        receipt = sink.flush()
    # The 20th of the second hundred was deleted by hand, so it comes again.
    assert (receipt.messages, receipt.duplicates) == (51, 99)
    ours = [name for name in ids(settings) if b"theirs" not in name and name]
    assert len(ours) == len(set(ours)) == 249


def test_resume_after_everything_was_purged(settings: NatsSink) -> None:
    with opened(settings) as sink:
        sink.write(batch(settings, range(100)))
        sink.flush()
    assert request(settings, f"STREAM.PURGE.{settings.stream.name}", {})["success"]
    with opened(settings, position(49)) as sink:
        sink.write(batch(settings, range(100, 150)))
        sink.flush()
    assert held(settings) == expected(settings, range(100, 150))


def test_an_instance_opened_again_knows_what_it_stored(settings: NatsSink) -> None:
    stream = settings.stream.model_copy(update={"duplicate_window_s": 0.1})
    settings = settings.model_copy(update={"stream": stream})
    with opened(settings) as sink:
        for start in range(0, 500, 100):
            sink.open(position(start - 1) if start else ORIGIN)
            sink.write(batch(settings, range(start, start + 100)))
            assert sink.flush().messages == 100
        time.sleep(0.5)
        # A task of the same micro-batch failed elsewhere: the same position, the same rows.
        sink.open(position(399))
        sink.write(batch(settings, range(400, 500)))
        assert sink.flush().duplicates == 100
        # Another process tried the next one and was cut off.
        with opened(settings, position(499)) as other:
            other.write(batch(settings, range(500, 550)))
            other.flush()
        time.sleep(0.5)
        sink.open(position(499))
        sink.write(batch(settings, range(500, 600)))
        assert sink.flush().duplicates == 50
    assert held(settings) == expected(settings, range(600))


def test_an_instance_opened_again_keeps_what_it_read_back(settings: NatsSink) -> None:
    """An attempt had gone far ahead; the next ones take smaller steps."""
    stream = settings.stream.model_copy(update={"duplicate_window_s": 0.1})
    settings = settings.model_copy(update={"stream": stream})
    with opened(settings) as sink:
        sink.write(batch(settings, range(500)))
        sink.flush()
    time.sleep(0.5)
    with opened(settings) as sink:
        for start in range(0, 600, 100):
            sink.open(position(start - 1) if start else ORIGIN)
            sink.write(batch(settings, range(start, start + 100)))
            sink.flush()
    assert held(settings) == expected(settings, range(600))


def test_the_server_refuses_what_came_since_we_looked(settings: NatsSink) -> None:
    """Within the window an instance opened again reads nothing back, and need not."""
    with opened(settings) as sink, opened(settings) as other:
        other.write(batch(settings, range(50)))
        other.flush()
        with structlog.testing.capture_logs() as logs:
            sink.open(ORIGIN)
            sink.write(batch(settings, range(100)))
            assert sink.flush().duplicates == 50
        assert logs == []
        # Another lane of the same micro-batch, in the same process: the same position.
        sink.open(ORIGIN)
        sink.write(batch(settings, range(100, 150)))
        assert sink.flush().messages == 50
    assert held(settings) == expected(settings, range(150))


def test_a_slow_batch_is_read_back_before_the_window_ends(settings: NatsSink) -> None:
    stream = settings.stream.model_copy(update={"duplicate_window_s": 2.0})
    settings = settings.model_copy(update={"stream": stream})
    with opened(settings) as sink:
        with opened(settings) as other:
            other.write(batch(settings, range(50)))
            other.flush()
        sink.open(ORIGIN)
        time.sleep(2.5)
        sink.write(batch(settings, range(100)))
        assert sink.flush().duplicates == 50
    assert held(settings) == expected(settings, range(100))


def test_a_batch_given_up_is_read_back(settings: NatsSink) -> None:
    with opened(settings) as sink:
        sink.write(batch(settings, range(1000)))
        sink.open(ORIGIN)
        sink.write(batch(settings, range(1000)))
        receipt = sink.flush()
        assert receipt.messages + receipt.duplicates == 1000
    assert held(settings) == expected(settings, range(1000))


def test_a_stream_made_anew_is_not_taken_for_the_old_one(settings: NatsSink) -> None:
    with opened(settings) as sink:
        sink.write(batch(settings, range(100)))
        sink.flush()
        assert request(settings, f"STREAM.DELETE.{settings.stream.name}", None)["success"]
        sink.open(position(99))
        sink.write(batch(settings, range(100, 120)))
        sink.flush()
    assert held(settings) == expected(settings, range(100, 120))


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_killed_server_gets_each_message_once_and_in_order(seed: int, atomic: bool) -> None:
    """GIVEN a server that is killed again and again while messages are on their way
    WHEN each attempt begins where the last durable one ended, the window for repeated ids over
    THEN the stream has every message once, in order."""
    rng = random.Random(seed)
    total, step = 40_000, 4000
    with EmbeddedNats() as server:
        stream = {"duplicate_window_s": 0.1, "atomic": atomic}
        mode = "transaction" if atomic else "none"
        settings = sink_settings(server.url, stream=stream, atomic=mode)
        sink = JetStream(settings, name="test")
        done, kills = 0, 0
        while done < total:
            killer = threading.Timer(rng.uniform(0.005, 0.06), server.kill)
            try:
                sink.open(position(done - 1) if done else ORIGIN)
                if kills < 5:
                    killer.start()
                for start in range(done, done + step, 500):
                    sink.write(batch(settings, range(start, start + 500), size=2000))
                sink.flush()
                done += step
            except SinkUnreachableError:
                pass
            if killer.is_alive() or killer.finished.is_set():
                killer.join()
                kills += 1
                time.sleep(0.2)
                server.start()
        sink.close()
        found = ids(settings)
    assert kills == 5
    assert found == [message_id(n) for n in range(total)]


# Lines


@pytest.fixture
def proxied(server: EmbeddedNats) -> Iterator[tuple[TcpProxy, NatsSink]]:
    with TcpProxy("127.0.0.1", server.port) as proxy:
        yield proxy, sink_settings(f"nats://127.0.0.1:{proxy.port}", timeout_s=1.0)


def test_a_cut_line_is_opened_anew(proxied: tuple[TcpProxy, NatsSink]) -> None:
    proxy, settings = proxied
    sink = JetStream(settings, name="test")
    sink.open(ORIGIN)
    sink.write(batch(settings, range(1000)))
    sink.flush()
    proxy.cut()
    with pytest.raises(SinkUnreachableError):
        deliver(sink, (batch(settings, range(n, n + 1000)) for n in range(1000, 10**6, 1000)))
    with pytest.raises(SinkUnreachableError, match="not open"):
        sink.flush()
    sink.open(position(999))
    sink.write(batch(settings, range(1000, 2000)))
    sink.flush()
    proxy.cut()
    # An idle line that is gone is found out by `open`.
    sink.open(position(1999))
    sink.write(batch(settings, range(2000, 3000)))
    sink.flush()
    sink.close()
    assert held(settings) == expected(settings, range(3000))


def test_a_silent_server_counts_as_gone(proxied: tuple[TcpProxy, NatsSink]) -> None:
    proxy, settings = proxied
    with opened(settings) as sink:
        proxy.black_hole()
        sink.write(batch(settings, range(10)))
        with pytest.raises(SinkUnreachableError, match="has not answered for 1 s"):
            sink.flush()
        with pytest.raises(SinkUnreachableError):
            sink.open(ORIGIN)
        proxy.heal()
        sink.open(ORIGIN)
        sink.write(batch(settings, range(10)))
        sink.flush()
    assert held(settings) == expected(settings, range(10))


def test_a_silent_server_cannot_be_filled_for_ever(proxied: tuple[TcpProxy, NatsSink]) -> None:
    proxy, settings = proxied
    settings = settings.model_copy(update={"max_outstanding": 10**6})
    with opened(settings) as sink:
        proxy.black_hole()
        large = batch(settings, range(1000), size=20_000)
        with pytest.raises(SinkUnreachableError):
            deliver(sink, itertools.repeat(large))


def test_the_next_address_is_tried(server: EmbeddedNats) -> None:
    settings = sink_settings(f"nats://127.0.0.1:1, {server.url}")
    with opened(settings) as sink:
        sink.write(batch(settings, range(10)))
        assert sink.flush().messages == 10


def test_what_is_no_nats_server_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            link, _ = listener.accept()
            with link:
                link.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                link.recv(1)

        thread = threading.Thread(target=greet)
        thread.start()
        settings = sink_settings(f"nats://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(SinkRefusedError, match="does not speak NATS"):
            JetStream(settings, name="test").open(ORIGIN)
        thread.join()


def test_a_server_without_jetstream_is_refused() -> None:
    config = "accounts { A { users: [{user: a, password: a}] } }"
    with EmbeddedNats(config=config) as server:
        settings = sink_settings(server.url, user="a", password="a")
        with pytest.raises(SinkRefusedError, match=r"JetStream|nobody answers"):
            JetStream(settings, name="test").open(ORIGIN)


# Refusals


def test_a_full_stream_is_said_and_nothing_is_lost(settings: NatsSink) -> None:
    stream = settings.stream.model_copy(update={"max_messages": 700})
    settings = settings.model_copy(update={"stream": stream})
    with opened(settings) as sink:
        sink.write(batch(settings, range(500)))
        sink.flush()
        with pytest.raises(SinkFullError, match=message_id(700).decode()):
            deliver(sink, [batch(settings, range(500, 1000))])
    config = stream_info(settings, stream.name)["config"] | {"max_msgs": -1}
    assert "error" not in request(settings, f"STREAM.UPDATE.{stream.name}", config)
    with opened(settings, position(499)) as sink:
        sink.write(batch(settings, range(500, 1000)))
        assert sink.flush().duplicates == 200
    assert held(settings) == expected(settings, range(1000))


def test_damaged_order_is_counted_and_said(settings: NatsSink) -> None:
    """A large message finds no room; a smaller one behind it does."""
    stream = settings.stream.model_copy(update={"max_bytes": 100_000})
    settings = settings.model_copy(update={"stream": stream})
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
        pytest.raises(SinkFullError, match="7 later ones were stored before it"),
    ):
        deliver(sink, [large])
    (line,) = [line for line in logs if line["event"] == "nats.order-damaged"]
    assert line["log_level"] == "error"
    assert line["stored_behind"] == 7


def test_a_message_too_large_is_named_before_it_is_sent(settings: NatsSink) -> None:
    make_stream(settings, max_msg_size=1000)
    with opened(settings) as sink:
        good, bad, later = (
            batch(settings, range(20)),
            batch(settings, [20], size=5000),
            batch(settings, range(21, 30)),
        )
        with pytest.raises(PoisonedError, match=r"bytes with its header, the limit is 1000") as e:
            sink.write(pa.concat_batches([good, bad, later]))
        assert message_id(20).decode() in str(e.value)
    assert held(settings) == expected(settings, range(20))


def test_the_servers_own_limit_counts_as_well() -> None:
    with EmbeddedNats(config="max_payload: 2000") as server:
        settings = sink_settings(server.url)
        exact = 2000 - len(payload(0)) - len(message_id(0)) - 27
        with opened(settings) as sink:
            sink.write(batch(settings, [0], size=exact))
            assert sink.flush().messages == 1
            with pytest.raises(PoisonedError, match="has 2001 bytes"):
                sink.write(batch(settings, [1], size=exact + 1))
        assert len(ids(settings)) == 1


@pytest.mark.parametrize(
    ("destination", "kind"),
    [(b"elsewhere.x", SinkRefusedError), (b"cdc bad", PoisonedError), (b"a\r\nb", PoisonedError)],
)
def test_a_wrong_destination_is_named_before_it_is_sent(
    settings: NatsSink, destination: bytes, kind: type[SinkError]
) -> None:
    with opened(settings) as sink, pytest.raises(kind, match=message_id(20).decode()):
        sink.write(
            pa.concat_batches(
                [batch(settings, range(20)), batch(settings, [20, 21], destination=destination)]
            )
        )
    assert held(settings) == expected(settings, range(20))


def test_an_id_that_breaks_its_line_is_refused(settings: NatsSink) -> None:
    good = batch(settings, range(3))
    names = pa.array([message_id(0), b"1-a\r\nNats-Rollup: all-1", message_id(2)], pa.binary())
    with opened(settings) as sink, pytest.raises(PoisonedError, match="line break"):
        sink.write(good.set_column(1, good.schema.field(1), names))
    assert held(settings) == expected(settings, range(1))


def test_a_stream_deleted_meanwhile_is_refused_by_name(settings: NatsSink) -> None:
    with opened(settings) as sink:
        assert request(settings, f"STREAM.DELETE.{settings.stream.name}", None)["success"]
        sink.write(batch(settings, range(10)))
        with pytest.raises(SinkRefusedError, match=subject(settings).decode()):
            sink.flush()


def test_the_ids_of_another_pipeline_are_found_out(settings: NatsSink) -> None:
    """Without this, the server's own deduplication would drop the second pipeline's messages."""
    with opened(settings) as sink:
        sink.write(batch(settings, range(10)))
        sink.flush()
    other = subject(settings).replace(b"orders", b"copies")
    with opened(settings) as sink:
        sink.write(batch(settings, range(10), destination=other))
        with pytest.raises(SinkRefusedError, match="holds that id under"):
            sink.flush()


def test_what_arrives_late_from_a_cut_line_is_no_collision(settings: NatsSink) -> None:
    with opened(settings) as sink:
        with opened(settings) as other:
            other.write(batch(settings, range(10)))
            other.flush()
        sink.write(batch(settings, range(15)))
        assert sink.flush() == Receipt(
            messages=5, bytes=sum(len(payload(n)) for n in range(15)), duplicates=10
        )


# Atomic batches


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
    stream = atomic.stream.model_copy(update={"max_messages": 25})
    atomic = atomic.model_copy(update={"stream": stream})
    with opened(atomic) as sink:
        sink.write(batch(atomic, range(20), per=20))
        sink.flush()
        sink.write(batch(atomic, range(20, 40), per=20))
        with pytest.raises(SinkFullError):
            sink.flush()
    assert len(ids(atomic)) == 20


def test_a_transaction_too_large_goes_out_in_order(atomic: NatsSink) -> None:
    with structlog.testing.capture_logs() as logs, opened(atomic) as sink:
        sink.write(batch(atomic, range(3500), per=3000))
        assert sink.flush().messages == 3500
    assert ids(atomic) == [message_id(n, per=3000) for n in range(3500)]
    assert "nats.not-atomic" in [line["event"] for line in logs]


def test_a_transaction_stored_meanwhile_is_read_back(atomic: NatsSink) -> None:
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
        JetStream(settings, name="test").open(ORIGIN)


def test_a_window_smaller_than_a_transaction(atomic: NatsSink) -> None:
    atomic = atomic.model_copy(update={"max_outstanding": 10})
    with opened(atomic) as sink:
        sink.write(batch(atomic, range(2000), per=500))
        assert sink.flush().messages == 2000
    assert ids(atomic) == [message_id(n, per=500) for n in range(2000)]
