"""The modes of the sink `redis` against a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from tailrace.errors import SinkRefusedError, SinkUnreachableError
from tailrace.finding import Severity
from tailrace.sinks.outcome import Verdict
from tailrace.sinks.redis.server_check import probe
from tailrace.sinks.redis.sink_type import SINK
from tailrace.testing import EmbeddedRedis
from tailrace.testing.process import free_port
from tests.integration.redis.bench import Bench, send
from tests.unit.sinks.rows import message_id, payload, position, with_column
from tests.waiting import wait_for

if TYPE_CHECKING:
    import pyarrow as pa


@pytest.fixture
def bench(redis_server: EmbeddedRedis) -> Bench:
    return Bench(redis_server.url)


def keyed(bench: Bench, numbers: range, keys: list[bytes | None]) -> pa.RecordBatch:
    return with_column(bench.rows(numbers), "key", keys)


def test_entries_of_a_stream(bench: Bench) -> None:
    with bench.opened() as sink:
        receipt = send(sink, keyed(bench, range(3), [b"7", None, b""]))
    assert receipt.messages == 3
    expected = [{b"id": message_id(n), b"payload": payload(n)} for n in range(3)]
    expected[0][b"key"], expected[2][b"key"] = b"7", b""
    assert [fields for _, fields in bench.entries()] == expected
    with bench.client() as client:
        milliseconds = int(client.time()[0]) * 1000
    assert all(abs(int(entry.split(b"-")[0]) - milliseconds) < 6e5 for entry, _ in bench.entries())


def test_ids_from_positions(bench: Bench) -> None:
    bench.deliver(range(7), ids="position")
    ids = [f"{int(position(n).lsn)}-{position(n).ordinal}".encode() for n in range(7)]
    assert [entry for entry, _ in bench.entries()] == ids


@pytest.mark.parametrize("exact", [False, True])
def test_streams_are_trimmed(bench: Bench, exact: bool) -> None:
    bench.deliver(range(1000), maxlen=150, maxlen_exact=exact, batch_rows=300)
    found = bench.numbers()
    assert found[-150:] == list(range(850, 1000))
    assert len(found) == 150 if exact else 150 <= len(found) <= 300


def test_many_streams_in_one_batch(bench: Bench) -> None:
    names = [b"%s.%d" % (bench.destination, number % 3) for number in range(30)]
    with bench.opened() as sink:
        send(sink, with_column(bench.rows(range(30)), "destination", list(names)))
    for at in range(3):
        found = bench.entries(b"%s.%d" % (bench.destination, at))
        assert [fields[b"id"] for _, fields in found] == [message_id(n) for n in range(at, 30, 3)]


def state_of(bench: Bench) -> dict[bytes, bytes]:
    with bench.client() as client:
        return {key: client.get(key) or b"" for key in client.keys(f"{bench.name}:*")}


def test_the_latest_state(bench: Bench) -> None:
    """GIVEN rows 1 to 4 WHEN 1 is updated, 2 deleted and 3 becomes 5 THEN the keys say so."""
    name = bench.destination
    with bench.opened(mode="string") as sink:
        assert send(sink, keyed(bench, range(4), [b"1", b"2", b"3", b"4"])).messages == 4
        later = keyed(bench, range(4, 7), [b"1", b"2", b"5"])
        later = with_column(later, "destination", [name, b"DEL " + name, name])
        send(sink, with_column(later, "former", [None, None, b"3"]))
    assert state_of(bench) == {
        name + b":1": payload(4),
        name + b":4": payload(3),
        name + b":5": payload(6),
    }


def test_values_may_be_empty_and_expire(bench: Bench) -> None:
    with bench.opened(mode="string", expire_s=1000) as sink:
        send(sink, with_column(keyed(bench, range(1), [b"1"]), "payload", [b""]))
    assert state_of(bench) == {bench.destination + b":1": b""}
    with bench.client() as client:
        assert 900 < client.ttl(f"{bench.name}:1") <= 1000


def test_a_message_without_a_key_has_no_state(bench: Bench) -> None:
    with bench.opened(mode="string") as sink:
        refused = sink.inspect(keyed(bench, range(3), [b"1", None, b"3"]))
    assert list(refused) == [1]
    assert "no key" in refused[1].reason
    assert "truncate" in refused[1].hint


def test_published_messages(bench: Bench) -> None:
    with bench.client() as client, client.pubsub() as listener:
        listener.subscribe(bench.name)
        wait_for(lambda: listener.get_message(timeout=1), "the subscription")
        assert bench.deliver(range(5), mode="publish").messages == 5
        assert bench.deliver(range(7), mode="publish").duplicates == 5
        found = [wait_for(lambda: listener.get_message(timeout=1), "a message") for _ in range(7)]
        assert [each["data"] for each in found] == [payload(n) for n in range(7)]
        assert listener.get_message(timeout=0) is None


def test_a_key_of_another_type_is_refused(bench: Bench) -> None:
    with bench.client() as client:
        client.set(bench.name, "x")
    with bench.opened() as sink:
        refused = sink.inspect(bench.rows(range(2)))
    assert [(each.verdict, each.code) for each in refused.values()] == [
        (Verdict.REFUSED, SinkRefusedError.code)
    ] * 2
    assert "holds a string" in refused[0].reason


def test_a_key_that_gets_another_type_later_leaves_nothing_behind(bench: Bench) -> None:
    """GIVEN two streams WHEN the second one becomes a string THEN neither gets a message."""
    other = bench.destination + b".2"
    batch = with_column(bench.rows(range(2)), "destination", [bench.destination, other])
    with bench.opened() as sink, bench.client() as client:
        assert sink.inspect(batch) == {}
        client.set(other, "x")
        sink.write(batch)
        with pytest.raises(SinkRefusedError, match="holds a string"):
            sink.flush()
        assert not client.exists(bench.name)
        client.delete(other)
    with bench.opened() as sink:
        assert send(sink, batch).messages == 2


def test_an_empty_destination_is_refused(bench: Bench) -> None:
    batch = with_column(bench.rows(range(2)), "destination", [b"", b"DEL "])
    with bench.opened() as sink:
        assert list(sink.inspect(batch)) == [0]
    with bench.opened(mode="string") as sink:
        assert list(sink.inspect(with_column(batch, "key", [b"1", b"1"]))) == [0, 1]


def test_a_unix_socket(redis_available: None) -> None:
    with EmbeddedRedis(unixsocket="redis.sock") as server:
        bench = Bench(f"unix://{server.folder}/redis.sock")
        assert bench.deliver(range(3)).messages == 3
        assert Bench(server.url, bench.name).numbers() == [0, 1, 2]


def test_a_server_that_is_not_there() -> None:
    bench = Bench(f"redis://127.0.0.1:{free_port()}")
    with pytest.raises(SinkUnreachableError, match=r"Redis at 127\.0\.0\.1"):
        probe(bench.settings(), name="test")
    [finding] = SINK.check(bench.settings())
    assert finding.severity is Severity.ERROR


def test_a_server_that_does_not_answer(redis_available: None) -> None:
    with EmbeddedRedis() as server:
        bench = Bench(server.url, timeout_s=0.5)
        with bench.opened() as sink, bench.client() as client:
            client.client_pause(3000)
            with pytest.raises(SinkUnreachableError, match=r"[Tt]ime"):
                send(sink, bench.rows(range(1)))


def test_what_check_reports(redis_available: None) -> None:
    with EmbeddedRedis(maxmemory_policy="allkeys-lru", appendonly="no") as server:
        settings = Bench(server.url).settings()
        found = list(SINK.check(settings))
        severities = [each.severity for each in found]
        assert severities == [Severity.WARNING, Severity.INFO, Severity.OK]
        assert "allkeys-lru" in found[0].finding
        probe(settings, name="test")
    settings = settings.model_copy(update={"url": SecretStr("redis://127.0.0.1:1")})
    assert [each.severity for each in SINK.check(settings)] == [Severity.ERROR]
