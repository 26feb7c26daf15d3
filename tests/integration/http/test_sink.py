"""The sink `http` against a real receiver."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tailrace.errors import SinkRefusedError, SinkUnreachableError
from tailrace.message import MESSAGES
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.http.settings import HttpSink
from tailrace.sinks.http.signature import Signer
from tailrace.sinks.http.sink import Http, probe, request_id
from tailrace.sinks.outcome import Verdict
from tailrace.sinks.retry import Retry
from tailrace.testing import HttpReceiver, HttpRequest, HttpResponse, TcpProxy
from tailrace.testing.process import free_port
from tests.unit.sinks.rows import message_id, payload, position, rows, write
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with HttpReceiver() as made:
        yield made


def settings_of(url: str, **keys: Any) -> HttpSink:
    return HttpSink.model_validate({"type": "http", "url": url, "allow_private": True, **keys})


ONCE = Retry(attempts=1)
SOON = Retry(first_s=0.01, max_s=0.1)


@contextmanager
def opened(url: str, retry: Retry = SOON, **keys: Any) -> Iterator[Http]:
    sink = Http(settings_of(url, **keys), Lane(pipeline="test", retry=retry))
    sink.open(ORIGIN)
    try:
        yield sink
    finally:
        sink.close()


def batch(numbers: range, *, keys: int = 0, destination: bytes = b"/") -> pa.RecordBatch:
    """Numbered messages, with so many keys."""
    made = rows(numbers, destination=destination)
    if not keys:
        return made
    field = MESSAGES.get_field_index("key")
    values = pa.array([b"%d" % (number % keys) for number in numbers], pa.binary())
    return made.set_column(field, MESSAGES.field(field), values)


def documents(count: int, *, keys: int = 0) -> pa.RecordBatch:
    """Numbered messages that are JSON documents."""
    field = MESSAGES.get_field_index("payload")
    values = pa.array([b'{"n":%d}' % number for number in range(count)], pa.binary())
    return batch(range(count), keys=keys).set_column(field, MESSAGES.field(field), values)


def send(sink: Http, rows: pa.RecordBatch) -> None:
    """Send messages and wait for the answers."""
    write(sink, rows)
    sink.flush()


def test_a_request_per_message(receiver: HttpReceiver) -> None:
    with opened(f"{receiver.url}/hook", headers={"Authorization": "Bearer x"}) as sink:
        write(sink, batch(range(3), destination=b"/orders?a=1"))
        assert sink.flush().messages == 3
    assert [each.id for each in receiver.requests] == [message_id(n).decode() for n in range(3)]
    first = receiver.requests[0]
    assert (first.method, first.path, first.body) == ("POST", "/hook/orders?a=1", payload(0))
    assert first.headers["authorization"] == "Bearer x"
    assert first.headers["content-type"] == "application/json"
    assert abs(int(first.headers["webhook-timestamp"]) - time.time()) < 600
    assert "webhook-signature" not in first.headers


def test_what_the_first_batch_has_delivered_is_noted(
    receiver: HttpReceiver, tmp_path: Path
) -> None:
    """GIVEN a sink that dies after its first requests WHEN the batch is sent again THEN only the
    rest of it is sent."""
    lane = Lane(pipeline="test", folder=tmp_path / "accepted", history="a")
    first, second = (Http(settings_of(receiver.url), lane) for _ in range(2))
    first.open(ORIGIN)
    write(first, batch(range(3)))
    assert first.flush().messages == 3
    second.open(ORIGIN)
    write(second, batch(range(5)))
    receipt = second.flush()
    first.close()
    second.close()
    assert (receipt.messages, receipt.duplicates) == (2, 3)
    assert [each.id for each in receiver.requests] == [message_id(n).decode() for n in range(5)]


def test_the_url_itself_is_the_default(receiver: HttpReceiver) -> None:
    with opened(f"{receiver.url}/hook", method="PUT") as sink:
        write(sink, batch(range(1)))
        sink.flush()
    assert [(each.method, each.path) for each in receiver.requests] == [("PUT", "/hook")]


def test_an_array_per_request(receiver: HttpReceiver) -> None:
    with opened(receiver.url, body="array", batch_rows=3) as sink:
        write(sink, documents(5, keys=5))
        assert sink.flush().messages == 5
    # Two requests of different keys may arrive in either order.
    requests = sorted(receiver.requests, key=lambda each: json.loads(each.body)[0]["n"])
    assert [json.loads(each.body) for each in requests] == [
        [{"n": 0}, {"n": 1}, {"n": 2}],
        [{"n": 3}, {"n": 4}],
    ]
    assert [each.id for each in requests] == [
        request_id([message_id(number) for number in range(3)]),
        request_id([message_id(number) for number in range(3, 5)]),
    ]


@pytest.mark.parametrize(
    ("ordered", "expected"), [(True, [[0, 1], [2, 3], [4]]), (False, [[0, 1, 2], [3, 4]])]
)
def test_an_array_has_each_key_once_unless_there_is_no_order(
    receiver: HttpReceiver, ordered: bool, expected: list[list[int]]
) -> None:
    settings = settings_of(receiver.url, body="array", batch_rows=3, concurrency=1)
    sink = Http(settings, Lane(pipeline="test", ordered=ordered))
    sink.open(ORIGIN)
    write(sink, documents(5, keys=2))
    assert sink.flush().messages == 5
    sink.close()
    sent = [[each["n"] for each in json.loads(request.body)] for request in receiver.requests]
    assert sent == expected


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_requests_are_signed(receiver: HttpReceiver, compression: str) -> None:
    """The signature is of the body before compression, as a receiver's framework shows it."""
    with opened(receiver.url, secret=SECRET, compression=compression) as sink:
        write(sink, batch(range(1)))
        sink.flush()
    [request] = receiver.requests
    assert request.body == payload(0)
    moment = int(request.headers["webhook-timestamp"])
    signature = Signer(SECRET).sign(request.id, moment, request.body)
    assert request.headers["webhook-signature"] == signature


@pytest.mark.parametrize(
    ("status", "headers", "verdict"),
    [
        (422, {}, Verdict.REFUSED),
        (302, {"location": "http://example.com/"}, Verdict.REFUSED),
        (408, {}, Verdict.RETRY),
        (500, {}, Verdict.RETRY),
    ],
)
def test_answers_are_outcomes(
    receiver: HttpReceiver, status: int, headers: dict[str, str], verdict: Verdict
) -> None:
    receiver.answer = lambda request: (
        HttpResponse(status=status, headers=headers, body=b"not today")
        if request.id == message_id(1).decode()
        else HttpResponse()
    )
    with opened(receiver.url, retry=ONCE) as sink:
        write(sink, batch(range(4), keys=4))
        receipt = sink.flush()
    assert receipt.messages == 3
    [(message, outcome)] = receipt.failures
    assert message["id"].to_pylist() == [message_id(1)]
    assert (outcome.verdict, outcome.code) == (verdict, f"HTTP_{status}")
    assert (outcome.response, outcome.attempts) == ("not today", 1)
    assert len(receiver.requests) == 4


def test_a_throttled_receiver_gets_nothing_for_a_while(receiver: HttpReceiver) -> None:
    times: list[float] = []

    def answer(_: HttpRequest) -> HttpResponse:
        times.append(time.monotonic())
        first = len(times) == 1
        return HttpResponse(status=429 if first else 200, headers={"retry-after": "1"})

    receiver.answer = answer
    with opened(receiver.url, concurrency=1) as sink:
        write(sink, batch(range(4), keys=4))
        assert sink.flush().messages == 4
    assert len(times) == 5
    assert times[1] - times[0] >= 1


def test_a_receiver_that_throttles_for_too_long_is_unreachable(receiver: HttpReceiver) -> None:
    """After a pause: it asks for one, and accepts nothing between two."""
    receiver.answer = lambda _: HttpResponse(status=429, headers={"retry-after": "1"})
    with opened(receiver.url, Retry(max_elapsed_s=0.5)) as sink:
        write(sink, batch(range(1)))
        with pytest.raises(SinkUnreachableError, match="accepts no more messages"):
            sink.flush()
    assert len(receiver.requests) == 2


def test_messages_of_a_refused_array_are_sent_one_by_one(receiver: HttpReceiver) -> None:
    def answer(request: HttpRequest) -> HttpResponse:
        return HttpResponse(status=422 if {"n": 3} in json.loads(request.body) else 200)

    receiver.answer = answer
    with opened(receiver.url, body="array", batch_rows=5) as sink:
        write(sink, documents(10, keys=10))
        receipt = sink.flush()
    assert receipt.messages == 9
    [(message, outcome)] = receipt.failures
    assert message["payload"].to_pylist() == [b'{"n":3}']
    assert outcome.code == "HTTP_422"
    bodies = [json.loads(each.body) for each in receiver.requests]
    assert sorted(len(each) for each in bodies) == [1] * 5 + [5, 5]


def test_an_array_takes_json_only(receiver: HttpReceiver) -> None:
    """GIVEN payloads that an expression has made THEN those that are not JSON are refused before
    the request that they would spoil."""
    made = documents(6, keys=6)
    field = MESSAGES.get_field_index("payload")
    payloads = [b'{"n":0}', b"hello", b"", b'{"n":', b"\xff", b'"text"']
    made = made.set_column(field, MESSAGES.field(field), pa.array(payloads, pa.binary()))
    with opened(receiver.url, body="array", batch_rows=6) as sink:
        refused = sink.inspect(made)
        assert list(refused) == [1, 2, 3, 4]
        assert {each.verdict for each in refused.values()} == {Verdict.REFUSED}
        assert "is not JSON" in refused[1].reason
        sink.write(made.take([0, 5]))
        assert sink.flush().messages == 2
    assert [json.loads(each.body) for each in receiver.requests] == [[{"n": 0}, "text"]]
    with opened(receiver.url) as sink:
        assert sink.inspect(made) == {}


def test_a_result_for_each_message_of_an_array(receiver: HttpReceiver) -> None:
    attempts: list[int] = []

    def answer(request: HttpRequest) -> HttpResponse:
        """The first time, message 1 is refused, and 2 is to be sent again."""
        numbers = [each["n"] for each in json.loads(request.body)]
        attempts.append(len(numbers))
        first = len(attempts) == 1
        statuses = [{1: 422, 2: 503}.get(number, 200) if first else 200 for number in numbers]
        body = json.dumps({"results": [{"status": each} for each in statuses]})
        return HttpResponse(status=207, body=body.encode())

    receiver.answer = answer
    with opened(receiver.url, body="array", batch_rows=5) as sink:
        write(sink, documents(5, keys=5))
        receipt = sink.flush()
    assert receipt.messages == 4
    [(message, _)] = receipt.failures
    assert message["payload"].to_pylist() == [b'{"n":1}']
    assert attempts == [5, 1]


def test_a_flush_in_the_middle_of_a_batch_does_not_wait_for_a_slow_request(
    receiver: HttpReceiver,
) -> None:
    proceed = threading.Event()

    def answer(request: HttpRequest) -> HttpResponse:
        if request.id == message_id(4).decode():
            proceed.wait(60)
        return HttpResponse()

    receiver.answer = answer
    with opened(receiver.url) as sink:
        write(sink, batch(range(9), keys=9))
        wait_for(lambda: len(receiver.requests) >= 8, lambda: len(receiver.requests))
        receipt = sink.flush(end=False)
        assert receipt.upto is not None
        assert position(3) <= receipt.upto < position(4)
        proceed.set()
        last = sink.flush()
    assert (receipt.messages + last.messages, last.upto) == (9, None)


def test_keys_are_delivered_in_parallel_and_in_order(receiver: HttpReceiver) -> None:
    lock, together, most = threading.Lock(), [0], [0]

    def answer(_: HttpRequest) -> HttpResponse:
        with lock:
            together[0] += 1
            most[0] = max(most[0], together[0])
        time.sleep(0.002)
        with lock:
            together[0] -= 1
        return HttpResponse()

    receiver.answer = answer
    with opened(receiver.url, concurrency=8) as sink:
        write(sink, batch(range(200), keys=20))
        assert sink.flush().messages == 200
    assert 1 < most[0] <= 8
    found = [int(each.body.partition(b"\r")[0]) for each in receiver.requests]
    for key in range(20):
        own = [number for number in found if number % 20 == key]
        assert own == sorted(own)


@pytest.mark.parametrize("status", [0, 500, 429])
def test_a_request_that_fails_twice_is_tried_again(receiver: HttpReceiver, status: int) -> None:
    """While it waits, no other request of its key is sent."""
    attempts: list[str] = []

    def answer(request: HttpRequest) -> HttpResponse:
        attempts.append(request.id)
        first = request.id == message_id(0).decode()
        return HttpResponse(status=status if first and attempts.count(request.id) < 3 else 200)

    receiver.answer = answer
    with opened(receiver.url) as sink:
        write(sink, batch(range(4), keys=2))
        assert sink.flush().messages == 4
    own = [each for each in attempts if each in {message_id(0).decode(), message_id(2).decode()}]
    assert own == [message_id(0).decode()] * 3 + [message_id(2).decode()]


def test_addresses_are_sent_as_they_are(receiver: HttpReceiver) -> None:
    with opened(f"{receiver.url}/hook/") as sink:
        write(sink, batch(range(1)))
        write(sink, batch(range(1, 2), destination=b"/orders;tenant=7?a=%2F"))
        sink.flush()
    assert [each.path for each in receiver.requests] == ["/hook/", "/hook/orders;tenant=7?a=%2F"]


def test_an_answer_that_breaks_off_counts(receiver: HttpReceiver) -> None:
    receiver.answer = lambda _: HttpResponse(headers={"content-length": "1000"}, body=b"x")
    with opened(receiver.url, timeout_s=0.5) as sink:
        write(sink, batch(range(1)))
        assert sink.flush().messages == 1
    assert len(receiver.requests) == 1


def test_a_receiver_that_does_not_answer_in_time(receiver: HttpReceiver) -> None:
    stop = threading.Event()

    def answer(request: HttpRequest) -> HttpResponse:
        if request.id == message_id(0).decode():
            stop.wait(30)
        return HttpResponse()

    receiver.answer = answer
    with opened(receiver.url, retry=ONCE, timeout_s=0.3) as sink:
        write(sink, batch(range(2), keys=2))
        [(_, outcome)] = sink.flush().failures
        stop.set()
    assert (outcome.verdict, outcome.code) == (Verdict.RETRY, "TIMEOUT")


def test_a_connection_that_is_lost(receiver: HttpReceiver) -> None:
    receiver.answer = lambda request: HttpResponse(
        status=0 if request.id == message_id(0).decode() else 200
    )
    with opened(receiver.url, retry=ONCE) as sink:
        write(sink, batch(range(2), keys=2))
        [(_, outcome)] = sink.flush().failures
    assert (outcome.verdict, outcome.code) == (Verdict.RETRY, "CONNECTION_LOST")


def test_idle_connections_that_were_closed_are_replaced(receiver: HttpReceiver) -> None:
    with (
        TcpProxy("127.0.0.1", receiver.port) as proxy,
        opened(f"http://127.0.0.1:{proxy.port}") as sink,
    ):
        for start in range(0, 30, 10):
            write(sink, batch(range(start, start + 10)))
            assert sink.flush().messages == 10
            proxy.cut()
    assert len(receiver.requests) == 30


def test_a_receiver_that_is_not_there() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(SinkUnreachableError, match="does not answer"):
        probe(settings_of(url), name="test")
    with opened(url) as sink:
        with pytest.raises(SinkUnreachableError, match="does not answer"):
            send(sink, batch(range(1)))
        with pytest.raises(SinkUnreachableError, match="not open"):
            sink.flush()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]"])
def test_private_addresses_are_refused(receiver: HttpReceiver, host: str) -> None:
    url = f"http://{host}:{receiver.port}"
    with (
        opened(url, allow_private=False) as sink,
        pytest.raises(SinkRefusedError, match="private address") as caught,
    ):
        send(sink, batch(range(1)))
    assert "allow_private" in caught.value.hint
    with pytest.raises(SinkRefusedError, match="private address"):
        probe(settings_of(url, allow_private=False), name="test")
    assert receiver.requests == []


def test_invalid_paths_are_refused(receiver: HttpReceiver) -> None:
    paths = [b"/", b"orders", b"/a b", b"//other.example/", b"/x/../y", "/ž".encode()]
    paths += [b"GET /x", b"PUT  /x", b"PUT", b"put /x"]
    field = MESSAGES.get_field_index("destination")
    made = batch(range(10)).set_column(field, MESSAGES.field(field), pa.array(paths, pa.binary()))
    with opened(receiver.url) as sink:
        refused = sink.inspect(made)
    assert sorted(refused) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert all("is not a valid path" in each.reason for each in refused.values())


def test_a_destination_may_name_a_method(receiver: HttpReceiver) -> None:
    paths = [b"PUT /orders/7", b"DELETE /orders/7", b"PATCH /orders", b"POST /", b"/orders"]
    field = MESSAGES.get_field_index("destination")
    made = batch(range(5)).set_column(field, MESSAGES.field(field), pa.array(paths, pa.binary()))
    with opened(receiver.url, method="PATCH") as sink:
        write(sink, made)
        assert sink.flush().messages == 5
    found = sorted((each.method, each.path) for each in receiver.requests)
    assert found == [
        *(("DELETE", "/orders/7"), ("PATCH", "/orders"), ("PATCH", "/orders")),
        *(("POST", "/"), ("PUT", "/orders/7")),
    ]


def test_a_probe_changes_nothing(receiver: HttpReceiver) -> None:
    probe(settings_of(f"{receiver.url}/hook"), name="test")
    assert receiver.requests == []


def test_a_long_answer_is_cut(receiver: HttpReceiver) -> None:
    receiver.answer = lambda _: HttpResponse(status=400, body=b"x" * 1_000_000)
    with opened(receiver.url) as sink:
        write(sink, batch(range(3), keys=3))
        failures = sink.flush().failures
    assert [len(each.outcome.response) for each in failures] == [2000] * 3


def test_what_a_first_batch_has_delivered_is_not_repeated(
    receiver: HttpReceiver, tmp_path: Path
) -> None:
    """GIVEN a sink whose task dies in its first batch WHEN the batch is replayed THEN it sends
    what was not accepted."""
    lane = Lane(pipeline="test", folder=tmp_path)
    for count in (3, 5):
        sink = Http(settings_of(receiver.url), lane)
        sink.open(ORIGIN)
        write(sink, batch(range(count), keys=count))
        receipt = sink.flush()
        sink.close()
    assert (receipt.messages, receipt.duplicates) == (2, 3)
    assert sorted(each.id for each in receiver.requests) == sorted(
        message_id(number).decode() for number in range(5)
    )
