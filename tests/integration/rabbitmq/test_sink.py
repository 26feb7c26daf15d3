"""The sink `rabbitmq` against a real broker."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import SinkFullError, SinkUnreachableError
from tailrace.finding import Severity
from tailrace.position import ORIGIN
from tailrace.sinks.outcome import Verdict
from tailrace.sinks.rabbitmq.sink import probe
from tailrace.sinks.rabbitmq.sink_type import SINK
from tailrace.sinks.retry import Retry
from tailrace.testing import EmbeddedRabbitMQ, TcpProxy
from tailrace.testing.process import free_port
from tests.integration.rabbitmq.bench import Bench, send
from tests.unit.sinks.rows import message_id, with_column

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def bench(rabbitmq_server: EmbeddedRabbitMQ) -> Bench:
    return Bench(rabbitmq_server)


@pytest.fixture(scope="module")
def own_server(rabbitmq_available: None) -> Iterator[EmbeddedRabbitMQ]:
    """A server that a test may stop or fill."""
    with EmbeddedRabbitMQ() as server:
        yield server


def test_messages_and_their_properties(bench: Bench) -> None:
    keys = {"headers": {"origin": "shop"}, "message_type": "change"}
    assert bench.deliver(range(3), **keys).messages == 3
    found = bench.consume()
    assert [each.number for each in found] == [0, 1, 2]
    assert found[1].headers == {"key": "1", "origin": "shop"}
    assert found[1].properties == {
        "content_type": "application/json",
        "delivery_mode": 2,
        "message_id": message_id(1).decode(),
        "timestamp": 0,
        "type": "change",
    }


@pytest.mark.parametrize("queue_type", ["quorum", "classic", "stream"])
def test_exchanges_and_queues_are_declared(bench: Bench, queue_type: str) -> None:
    arguments = {} if queue_type == "stream" else {"x-max-length": 1000}
    with bench.opened(queue_type=queue_type, queue_arguments=arguments) as sink:
        assert send(sink, bench.rows(range(5))).messages == 5
    with bench.channel() as channel:
        expected = {"x-queue-type": queue_type, **arguments}
        declared = channel.queue_declare(
            f"{bench.name}.a", durable=True, auto_delete=False, arguments=expected
        )
    assert declared.queue == f"{bench.name}.a"
    if queue_type != "stream":
        assert bench.numbers() == [0, 1, 2, 3, 4]


def test_what_exists_is_not_altered(bench: Bench) -> None:
    bench.declare(arguments={"x-max-length": 3})
    assert bench.deliver(range(5), queue_type="quorum", exchange_type="direct").messages == 5
    assert bench.numbers() == [2, 3, 4]


def test_keys_stay_in_order_with_many_messages_in_flight(bench: Bench) -> None:
    with bench.opened() as sink:
        assert send(sink, bench.rows(range(3000), keys=700)).messages == 3000
    found = bench.numbers()
    assert sorted(found) == list(range(3000))
    for key in range(700):
        own = [number for number in found if number % 700 == key]
        assert own == sorted(own)


def test_a_returned_message_is_refused_and_holds_back_its_key(bench: Bench) -> None:
    bench.declare()
    batch = bench.rows(range(9), keys=3)
    places = [f"{bench.name}/{'b' if n == 4 else 'a'}".encode() for n in range(9)]
    with bench.opened(declare="none") as sink:
        receipt = send(sink, with_column(batch, "destination", list(places)))
    returned, unsent = receipt.failures
    assert returned.message["id"][0].as_py() == message_id(4)
    assert returned.outcome.verdict is Verdict.REFUSED
    assert returned.outcome.code == "AMQP_312"
    assert returned.outcome.response == "312 NO_ROUTE"
    assert "no queue for routing key 'b'" in returned.outcome.reason
    assert unsent.message["id"][0].as_py() == message_id(7)
    assert unsent.outcome.verdict is Verdict.UNSENT
    assert receipt.messages == 7
    assert sorted(bench.numbers()) == [0, 1, 2, 3, 5, 6, 8]


def test_many_returned_messages_are_matched(bench: Bench) -> None:
    bench.declare("b")
    with bench.opened(declare="none") as sink:
        receipt = send(sink, bench.rows(range(2000)))
    names = [each.message["id"][0].as_py() for each in receipt.failures]
    assert names == [message_id(n) for n in range(2000)]
    assert {each.outcome.code for each in receipt.failures} == {"AMQP_312"}


def test_without_mandatory_rabbitmq_drops_what_reaches_no_queue(bench: Bench) -> None:
    bench.declare("b")
    assert bench.deliver(range(5), declare="none", mandatory=False).messages == 5
    assert bench.numbers("b") == []


def test_a_missing_exchange_is_refused_before_anything_is_sent(bench: Bench) -> None:
    with bench.opened(declare="none") as sink:
        refused = sink.inspect(bench.rows(range(2)))
        assert [each.code for each in refused.values()] == ["SINK_REFUSED"] * 2
        assert "does not exist" in refused[0].reason
        assert "declare: exchange" in refused[0].hint
        bench.declare()
        assert send(sink, bench.rows(range(2))).messages == 2


def test_an_exchange_that_is_deleted_on_the_way_is_noticed(bench: Bench) -> None:
    bench.declare()
    with bench.opened(declare="none") as sink:
        assert sink.inspect(bench.rows(range(2))) == {}
        with bench.channel() as channel:
            channel.exchange_delete(bench.name)
        with pytest.raises(SinkUnreachableError, match="no exchange"):
            send(sink, bench.rows(range(2)))


def test_invalid_messages_are_refused(bench: Bench) -> None:
    batch = bench.rows(range(4))
    batch = with_column(batch, "destination", [b"x" * 300, *[f"{bench.name}/a".encode()] * 3])
    batch = with_column(batch, "id", [b"a", b"x" * 256, b"b", b"c"])
    batch = with_column(batch, "key", [b"1", b"2", b"x" * 200_000, b"4"])
    with bench.opened() as sink:
        refused = sink.inspect(batch)
        assert sorted(refused) == [0, 1, 2]
        assert {each.verdict for each in refused.values()} == {Verdict.REFUSED}
        assert send(sink, batch.slice(3)).messages == 1


def test_a_full_queue_is_retried_until_a_consumer_makes_room(bench: Bench) -> None:
    """GIVEN a queue that rejects messages when it is full WHEN a consumer reads THEN everything
    arrives, and keys are in order."""
    bench.declare(arguments={"x-max-length": 50, "x-overflow": "reject-publish"})
    found: list[int] = []
    done = threading.Event()

    def consume() -> None:
        while not done.is_set():
            found.extend(each.number for each in bench.consume(limit=20))

    patient = Retry(attempts=1000, first_s=0.01, max_s=0.1, max_elapsed_s=10_000)
    with bench.opened(declare="none", retry=patient) as sink:
        reader = threading.Thread(target=consume)
        reader.start()
        try:
            assert send(sink, bench.rows(range(1000), keys=40)).messages == 1000
        finally:
            done.set()
            reader.join()
    found += bench.numbers()
    assert sorted(found) == list(range(1000))
    for key in range(40):
        own = [number for number in found if number % 40 == key]
        assert own == sorted(own)


@pytest.mark.long
def test_a_queue_that_stays_full_stops_its_keys_and_no_others(bench: Bench) -> None:
    bench.declare(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    bench.declare("b")
    assert bench.deliver(range(1), declare="none").messages == 1
    batch = bench.rows(range(1, 4))
    places = [f"{bench.name}/{'a' if n == 2 else 'b'}".encode() for n in (1, 2, 3)]
    with bench.opened(declare="none", retry=Retry(attempts=3, first_s=0.01, max_s=0.02)) as sink:
        receipt = send(sink, with_column(batch, "destination", list(places)))
    [failure] = receipt.failures
    assert failure.message["id"][0].as_py() == message_id(2)
    assert (failure.outcome.code, failure.outcome.attempts) == ("AMQP_NACK", 3)
    assert failure.outcome.verdict is Verdict.RETRY
    with bench.opened(declare="none", retry=Retry(attempts=2, first_s=0.01, max_s=0.02)) as sink:
        sink.write(bench.rows(range(4, 6)))
        with pytest.raises(SinkFullError, match="a queue is full"):
            sink.flush()


def test_a_replay_skips_what_was_confirmed(bench: Bench, tmp_path: Path) -> None:
    with bench.opened(folder=tmp_path) as sink:
        assert send(sink, bench.rows(range(5))).messages == 5
    with bench.opened(folder=tmp_path) as sink:
        receipt = send(sink, bench.rows(range(8)))
    assert (receipt.messages, receipt.duplicates) == (3, 5)
    assert bench.numbers() == list(range(8))


def test_a_lost_connection_repeats_only_what_was_not_confirmed(
    bench: Bench, tmp_path: Path
) -> None:
    bench.declare()
    with TcpProxy("127.0.0.1", bench.server.port) as proxy:
        url = f"amqp://127.0.0.1:{proxy.port}"
        with bench.opened(folder=tmp_path, url=url) as sink:
            assert send(sink, bench.rows(range(5))).messages == 5
            proxy.cut()
            with pytest.raises(SinkUnreachableError):
                send(sink, bench.rows(range(5, 10)))
            sink.open(ORIGIN)
            assert send(sink, bench.rows(range(10))).duplicates == 5
    found = bench.numbers()
    assert sorted(set(found)) == list(range(10))
    assert found.count(0) == 1


def test_an_idle_connection_that_was_lost_is_replaced(bench: Bench) -> None:
    with (
        TcpProxy("127.0.0.1", bench.server.port) as proxy,
        bench.opened(url=f"amqp://127.0.0.1:{proxy.port}") as sink,
    ):
        assert send(sink, bench.rows(range(2))).messages == 2
        proxy.cut()
        sink.open(ORIGIN)
        assert send(sink, bench.rows(range(2, 4))).messages == 2
    assert bench.numbers() == [0, 1, 2, 3]


def test_heartbeats_keep_an_idle_connection(bench: Bench) -> None:
    """RabbitMQ drops a connection after two heartbeats that are missing."""
    with bench.opened(heartbeat_s=1) as sink:
        assert send(sink, bench.rows(range(2))).messages == 2
        threading.Event().wait(4)
        assert send(sink, bench.rows(range(2, 4))).messages == 2


def test_several_addresses(bench: Bench) -> None:
    url = f"amqp://127.0.0.1:{free_port()},127.0.0.1:{bench.server.port}"
    assert bench.deliver(range(2), url=url).messages == 2
    with pytest.raises(SinkUnreachableError, match="RabbitMQ at 127"):
        probe(bench.settings(url=f"amqp://127.0.0.1:{free_port()}"), name="p")


@pytest.mark.long
def test_a_server_that_stops_and_starts(own_server: EmbeddedRabbitMQ, tmp_path: Path) -> None:
    bench = Bench(own_server)
    with bench.opened(folder=tmp_path) as sink:
        assert send(sink, bench.rows(range(50))).messages == 50
        own_server.stop()
        with pytest.raises(SinkUnreachableError) as caught:
            send(sink, bench.rows(range(50, 60)))
        assert caught.value.hint
        with pytest.raises(SinkUnreachableError, match="refused"):
            sink.open(ORIGIN)
        own_server.start()
        sink.open(ORIGIN)
        receipt = send(sink, bench.rows(range(60)))
    assert (receipt.messages, receipt.duplicates) == (10, 50)
    assert bench.numbers() == list(range(60))


@pytest.mark.long
def test_alarms(own_server: EmbeddedRabbitMQ) -> None:
    """GIVEN a broker that blocks publishers THEN the sink says so, and nothing is sent; WHEN the
    alarm ends THEN everything arrives once."""
    bench = Bench(own_server)
    with bench.opened() as sink:
        assert send(sink, bench.rows(range(2))).messages == 2
        own_server.control("set_vm_memory_high_watermark", "0.000001")
        # A new connection finds out without a message that would arrive later.
        with pytest.raises(SinkFullError, match="blocks publishers: low on memory") as caught:
            probe(bench.settings(), name="p")
        assert "rabbitmq-diagnostics alarms" in caught.value.hint
        [finding] = SINK.check(bench.settings())
        assert finding.severity is Severity.ERROR
        sink.write(bench.rows(range(2, 4)))
        # Sent before the broker said so, and taken when the alarm ends.
        assert sink.flush(end=False).upto is not None
        own_server.control("set_vm_memory_high_watermark", "0.9")
        assert sink.flush().messages == 2
    assert bench.numbers() == [0, 1, 2, 3]


@pytest.mark.long
def test_an_alarm_that_lasts_stops_the_attempt(own_server: EmbeddedRabbitMQ) -> None:
    bench = Bench(own_server)
    with bench.opened(timeout_s=2) as sink:
        assert send(sink, bench.rows(range(2))).messages == 2
        own_server.control("set_vm_memory_high_watermark", "0.000001")
        with pytest.raises(SinkFullError, match="blocks publishers"):
            probe(bench.settings(), name="p")
        sink.write(bench.rows(range(2, 4)))
        with pytest.raises(SinkFullError, match="blocks publishers"):
            sink.flush()
        with pytest.raises(SinkFullError, match="blocks publishers"):
            sink.open(ORIGIN)
        own_server.control("set_vm_memory_high_watermark", "0.9")
        sink.open(ORIGIN)
        assert send(sink, bench.rows(range(2, 4))).messages == 2
    assert set(bench.numbers()) == {0, 1, 2, 3}


def test_check(bench: Bench) -> None:
    [finding] = SINK.check(bench.settings())
    assert finding.severity is Severity.OK
    settings = bench.settings(declare="none")
    [missing] = SINK.check_destinations(settings, [f"{bench.name}/a"])
    assert "does not exist" in missing.finding
    bench.declare()
    assert list(SINK.check_destinations(settings, [f"{bench.name}/a"])) == []
    [long] = SINK.check_destinations(bench.settings(), [f"{bench.name}/{'x' * 256}"])
    assert "longer than AMQP allows" in long.finding
