"""Requests: several at a time, one per key, nothing after a failure of its key."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import SinkUnreachableError
from tailrace.message import MESSAGES
from tailrace.sinks.contract import Receipt
from tailrace.sinks.outcome import Outcome, Verdict
from tailrace.sinks.requests.engine import Requests
from tailrace.sinks.requests.limits import Limits
from tailrace.sinks.requests.request import cut
from tailrace.sinks.retry import Retry
from tailrace.sinks.unaccepted import UNSENT
from tests.unit.sinks.rows import payload, rows
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

FAILED = Outcome(verdict=Verdict.REFUSED, code="HTTP_422", reason="the receiver answers 422")
SOON = Retry(first_s=0.001, max_s=0.01)
SLOW_DOWN = Outcome(verdict=Verdict.THROTTLED, code="HTTP_429", reason="it answers 429")
BUSY = Outcome(verdict=Verdict.RETRY, code="HTTP_503", reason="the receiver answers 503")


def batch_of(*keys: bytes | None, former: Mapping[int, bytes] | None = None) -> pa.RecordBatch:
    """Numbered messages with these keys; a destination follows a `/` in a key."""
    destinations = [b"/" + (key or b"").partition(b"/")[2] for key in keys]
    columns = {
        "destination": pa.array(destinations, pa.binary()),
        "key": pa.array([key and key.partition(b"/")[0] for key in keys], pa.binary()),
        "former": pa.array([(former or {}).get(row) for row in range(len(keys))], pa.binary()),
    }
    batch = rows(range(len(keys)))
    for name, values in columns.items():
        batch = batch.set_column(MESSAGES.get_field_index(name), MESSAGES.field(name), values)
    return batch


def numbers(batch: pa.RecordBatch) -> list[int]:
    return [int(value.partition(b"\r")[0]) for value in batch.column("payload").to_pylist()]


@pytest.fixture
def engine() -> Iterator[Callable[..., Requests]]:
    made: list[Requests] = []

    def make(send: Any, retry: Retry = SOON, **limits: Any) -> Requests:
        options = {name: limits.pop(name) for name in ("ordered", "blocks") if name in limits}
        made.append(Requests(send, Limits(**limits), retry, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_messages_are_cut_by_destination_rows_and_bytes() -> None:
    batch = batch_of(b"1/a", b"2/a", b"3/a", b"4/b", b"5/a")
    found = [numbers(request.rows) for request in cut(batch, Limits(rows=2))]
    assert found == [[0, 1], [2], [3], [4]]
    size = len(payload(0))
    assert len(list(cut(batch_of(*[b"1"] * 9), Limits(rows=100, bytes=3 * size)))) == 3
    assert len(list(cut(batch_of(*[b"1"] * 9), Limits(rows=100, bytes=1)))) == 9
    assert list(cut(batch_of(), Limits())) == []


def test_requests_of_one_key() -> None:
    """Keys follow one another as their first messages do. A key with two destinations stays as it
    is, and so does a batch whose keys are tied."""

    def requests(*keys: bytes | None, former: Mapping[int, bytes] | None = None) -> list[list[int]]:
        limits = Limits(rows=3, one_key=True)
        return [numbers(each.rows) for each in cut(batch_of(*keys, former=former), limits)]

    assert requests(b"b", b"a", b"b", b"a", b"b", b"b", b"c") == [[0, 2, 4], [5], [1, 3], [6]]
    assert requests(b"a/1", b"b/2", b"a/1") == [[0, 2], [1]]
    assert requests(b"a/1", b"a/2", b"a/1", b"a/1") == [[0], [1], [2, 3]]
    assert requests(b"a", b"b", b"a", b"a", former={1: b"a"}) == [[0], [1], [2, 3]]
    assert requests(None, None, None, None, b"a", None) == [[0, 1, 2], [3], [4], [5]]
    assert requests() == []


def test_a_receipt_counts_what_was_accepted(engine: Callable[..., Requests]) -> None:
    requests = engine(lambda _: {}, rows=3)
    requests.take(batch_of(b"1", b"2", b"3", b"4"))
    size = sum(len(payload(number)) for number in range(4))
    assert requests.flush() == Receipt(messages=4, bytes=size)
    assert requests.flush() == Receipt()


def test_a_slow_request_holds_up_its_own_key_only(engine: Callable[..., Requests]) -> None:
    sent: list[int] = []
    proceed = threading.Event()

    def send(batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        sent.extend(numbers(batch))
        if numbers(batch) == [0]:
            proceed.wait(60)
        return {}

    requests = engine(send, concurrency=2)
    requests.take(batch_of(b"slow", b"a", b"slow", b"b", b"c"))
    wait_for(lambda: sorted(sent) == [0, 1, 3, 4], lambda: sent)
    proceed.set()
    assert requests.flush().messages == 5
    assert sent[-1] == 2


def test_nothing_of_a_key_is_sent_after_a_failure(engine: Callable[..., Requests]) -> None:
    sent: list[int] = []

    def send(batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        sent.extend(numbers(batch))
        return {0: FAILED} if 1 in numbers(batch) else {}

    requests = engine(send)
    # The update at 3 moves key b to c: what follows of c is held back too.
    requests.take(batch_of(b"a", b"b", b"b", b"c", b"c", b"a", former={3: b"b"}))
    receipt = requests.flush()
    assert sorted(sent) == [0, 1, 5]
    found = [(*numbers(message), outcome) for message, outcome in receipt.failures]
    assert found == [(1, FAILED), (2, UNSENT), (3, UNSENT), (4, UNSENT)]
    assert receipt.messages == 2
    requests.take(batch_of(b"b"))
    assert requests.flush().messages == 1


def test_a_message_without_a_key_follows_and_precedes_its_table(
    engine: Callable[..., Requests],
) -> None:
    sent: list[int] = []

    def send(batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        sent.extend(numbers(batch))
        return {0: FAILED} if numbers(batch) == [3] else {}

    requests = engine(send)
    requests.take(batch_of(b"a", b"b", None, b"b", b"a", None, b"c"))
    receipt = requests.flush()
    assert set(sent[:2]) == {0, 1}
    assert sent[2] == 2
    assert set(sent[3:]) == {3, 4}
    assert [numbers(message) for message, _ in receipt.failures] == [[3], [5], [6]]


@pytest.mark.parametrize("ordinary", [True, False])
def test_an_error_of_a_request_is_raised(engine: Callable[..., Requests], ordinary: bool) -> None:
    def send(batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        raise (ConnectionError if ordinary else KeyboardInterrupt)(batch.num_rows)

    requests = engine(send)
    with pytest.raises(ConnectionError if ordinary else KeyboardInterrupt):  # noqa: PT012 - by whichever call gets the answer
        requests.take(batch_of(b"a"))
        requests.flush()


def test_take_waits_while_many_answers_are_missing(engine: Callable[..., Requests]) -> None:
    sent: list[int] = []

    def send(part: pa.RecordBatch) -> Mapping[int, Outcome]:
        sent.append(part.num_rows)
        return {}

    requests = engine(send, concurrency=4)
    for number in range(1, 6):
        requests.take(batch_of(*[b"%d" % key for key in range(1000)]))
        assert sum(sent) >= number * 1000 - 2048
    assert requests.flush().messages == 5000


def test_a_long_chain_of_a_failed_key_is_held_back(engine: Callable[..., Requests]) -> None:
    proceed = threading.Event()

    def send(_: pa.RecordBatch) -> Mapping[int, Outcome]:
        proceed.wait(60)
        return {0: FAILED}

    requests = engine(send)
    requests.take(batch_of(*[b"hot"] * 2000))
    proceed.set()
    receipt = requests.flush()
    assert [outcome for _, outcome in receipt.failures] == [FAILED, *[UNSENT] * 1999]


def test_a_message_is_sent_as_often_as_allowed(engine: Callable[..., Requests]) -> None:
    """Others are accepted meanwhile, so that it is the message that fails."""
    sent: list[int] = []

    def send(part: pa.RecordBatch) -> Mapping[int, Outcome]:
        sent.extend(numbers(part))
        return {0: BUSY} if 1 in numbers(part) else {}

    requests = engine(send, Retry(attempts=4, first_s=0.001), concurrency=1)
    requests.take(batch_of(b"a", b"b", b"c", b"b", b"d"))
    receipt = requests.flush()
    assert [outcome.attempts for _, outcome in receipt.failures] == [4, 0]
    assert sorted(sent) == [0, 1, 1, 1, 1, 2, 4]
    assert sent[-1] == 1
    # The last attempt is the failure of the receipt.
    assert (receipt.messages, receipt.failed) == (3, 3)
    assert requests.flush().failed == 0


def test_a_message_that_is_accepted_at_last_precedes_the_next_of_its_key(
    engine: Callable[..., Requests],
) -> None:
    sent: list[int] = []

    def send(part: pa.RecordBatch) -> Mapping[int, Outcome]:
        sent.extend(numbers(part))
        return {0: BUSY} if 1 in numbers(part) and sent.count(1) < 3 else {}

    requests = engine(send)
    requests.take(batch_of(b"a", b"b", b"b", b"c"))
    receipt = requests.flush()
    assert (receipt.messages, receipt.failed) == (4, 2)
    assert [each for each in sent if each in {1, 2}] == [1, 1, 1, 2]


def test_a_message_that_is_accepted_during_a_pause_does_not_end_it_early() -> None:
    """GIVEN a request that is throttled WHEN the answer to another one overtakes its answer THEN
    both are delivered in the end: the destination has not been throttling since 1970."""
    proceed = threading.Event()
    throttled: list[int] = []

    def send(part: pa.RecordBatch) -> Mapping[int, Outcome]:
        if numbers(part) == [1]:
            proceed.wait(60)
        elif not throttled:
            throttled.append(1)
            return {0: SLOW_DOWN}
        return {}

    def chance() -> float:
        proceed.set()
        wait_for(lambda: requests._accepted == 1)
        return 0.0

    requests = Requests(send, Limits(concurrency=2), SOON, chance=chance)
    requests.take(batch_of(b"a", b"b"))
    receipt = requests.flush()
    # A request that is throttled is no attempt.
    assert (receipt.messages, receipt.failed) == (2, 0)
    requests.close()


def test_a_message_that_waits_holds_back_nothing_before_it(
    engine: Callable[..., Requests],
) -> None:
    """GIVEN a message of key b that was not accepted, and a message that changes key b to a WHEN
    earlier messages of key a are sent again, one by one THEN these are not held back."""
    sent: list[list[int]] = []

    def send(part: pa.RecordBatch) -> Mapping[int, Outcome]:
        sent.append(numbers(part))
        return dict.fromkeys(range(part.num_rows), FAILED) if sent[-1] in ([0], [1, 2]) else {}

    requests = engine(send, rows=3)
    requests.take(batch_of(b"b/x", b"a", b"a", b"a", former={3: b"b"}))
    failures = [(numbers(each.message), each.outcome) for each in requests.flush().failures]
    assert failures == [([0], FAILED), ([3], UNSENT)]
    assert sent == [[0], [1, 2], [1], [2]]


def test_without_order_nothing_waits_and_nothing_is_held_back(
    engine: Callable[..., Requests],
) -> None:
    sent: list[int] = []

    def send(part: pa.RecordBatch) -> Mapping[int, Outcome]:
        sent.extend(numbers(part))
        return {0: FAILED} if 0 in numbers(part) else {}

    requests = engine(send, ordered=False, blocks=False)
    requests.take(batch_of(b"a", b"a", b"a"))
    receipt = requests.flush()
    assert (receipt.messages, len(receipt.failures)) == (2, 1)
    assert sorted(sent) == [0, 1, 2]


def test_a_destination_that_accepts_nothing_is_unreachable(
    engine: Callable[..., Requests],
) -> None:
    requests = engine(lambda _: {0: BUSY}, concurrency=1)
    requests.take(batch_of(b"a", b"b", b"c"))
    with pytest.raises(SinkUnreachableError, match=r"no message is accepted: .* 503"):
        requests.flush()


KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"a/x", b"b/x", None])
CHANGES = st.tuples(KEYS, st.none() | st.sampled_from([b"a", b"b", b"c", b"d"]))


@settings(deadline=None)
@given(
    st.lists(CHANGES, max_size=40),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.2, 0.7]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_any_messages_keep_their_order(
    changes: list[tuple[bytes | None, bytes | None]],
    size: int,
    failing: float,
    one_key: bool,
    seed: int,
) -> None:
    former = {row: old for row, (_, old) in enumerate(changes) if old is not None}
    batch = batch_of(*[key for key, _ in changes], former=former)
    accepted: list[int] = []
    attempted: list[int] = []
    rng = random.Random(seed)
    running: set[int] = set()
    lock = threading.Lock()

    def conflict(one: int, other: int) -> bool:
        if changes[one][0] is None or changes[other][0] is None:
            return True
        groups = [{(key or b"").partition(b"/")[0], old} for key, old in changes]
        return bool((groups[one] & groups[other]) - {None})

    def send(part: pa.RecordBatch) -> Mapping[int, Outcome]:
        own = numbers(part)
        assert not one_key or len(set(part["key"].to_pylist())) == 1
        with lock:
            assert not any(conflict(one, other) for one in own for other in running)
            running.update(own)
            fails = rng.random() < failing
        time.sleep(rng.choice([0, 0, 0.001]))
        with lock:
            running.difference_update(own)
            attempted.extend(own)
            accepted.extend([] if fails else own)
        return dict.fromkeys(range(len(own)), FAILED) if fails else {}

    requests = Requests(send, Limits(rows=size, concurrency=4, one_key=one_key))
    try:
        requests.take(batch)
        receipt = requests.flush()
    finally:
        requests.close()
    failures = {numbers(message)[0]: outcome for message, outcome in receipt.failures}
    assert receipt.messages + len(failures) == len(changes)
    refused = sum(outcome == FAILED for outcome in failures.values())
    assert receipt.messages + receipt.failed + refused == len(attempted)
    order = {number: at for at, number in enumerate(accepted)}
    assert len(order) == len(accepted) == receipt.messages
    for later in range(len(changes)):
        earlier = [number for number in range(later) if conflict(number, later)]
        if later in order:
            assert all(order[number] < order[later] for number in earlier)
        else:
            failed = any(number in failures for number in earlier)
            assert failures[later] == (UNSENT if failed else FAILED)
