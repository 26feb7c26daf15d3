"""What is sent, and what answers mean, against a broker that decides at random."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tailrace.errors import SinkFullError, SinkUnreachableError
from tailrace.message import MESSAGES
from tailrace.position import ORIGIN, READS, RELEASED
from tailrace.sinks.contract import Lane
from tailrace.sinks.outcome import Outcome, Verdict
from tailrace.sinks.rabbitmq.channel import Confirm, Returned
from tailrace.sinks.rabbitmq.destination import Destination
from tailrace.sinks.rabbitmq.outbox import Limits, Outbox
from tailrace.sinks.requests.acknowledged import Acknowledged
from tailrace.sinks.requests.doubts import Doubts
from tailrace.sinks.retry import Retry
from tests.unit.sinks.rows import message_id, position, rows, with_column

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

THRICE = Retry(attempts=3, first_s=0.1)
UNROUTABLE = Outcome(verdict=Verdict.REFUSED, code="AMQP_312", reason="no queue")
DESTINATION = b"cdc/orders"
Fate = str
"""`ack`, `nack` or `return`."""


class Broker:
    """A channel to a broker whose time is virtual. `fate` decides about each attempt."""

    def __init__(self, fate: Callable[[bytes], Fate], rng: random.Random | None = None) -> None:
        self._fate = fate
        self._rng = rng or random.Random(0)
        self._tag = 0
        self.now_s = 0.0
        self.blocked = False
        self.silent = False
        self.flying: deque[tuple[int, bytes, bytes | None]] = deque()
        self.sent: list[bytes] = []
        self.accepted: list[bytes] = []
        self.largest = 0

    def publish(self, batch: pa.RecordBatch) -> int:
        assert not self.blocked
        first = self._tag + 1
        columns = [batch.column(name).to_pylist() for name in ("id", "key")]
        for name, key in zip(*columns, strict=True):
            self._tag += 1
            if key is not None:
                assert key not in {other for _, _, other in self.flying}
            self.flying.append((self._tag, name, key))
            self.sent.append(name)
        self.largest = max(self.largest, len(self.flying))
        return first

    def receive(self, timeout_s: float) -> list[Confirm | Returned]:
        if self.silent or not self.flying:
            self.now_s += timeout_s
            return []
        if not timeout_s and self._rng.random() < 0.5:
            return []
        answers: list[Confirm | Returned] = []
        for _ in range(self._rng.randint(1, 4)):
            answers += self._answer()
        return answers

    def _answer(self) -> list[Confirm | Returned]:
        """About one message, or about all up to one."""
        if not self.flying:
            return []
        at = self._rng.randrange(len(self.flying))
        tag, name, _ = self.flying[at]
        multiple = self._rng.random() < 0.3
        chosen = [each for each in self.flying if each[0] <= tag] if multiple else [self.flying[at]]
        fates = [self._fate(each[1]) for each in chosen]
        if "nack" in fates and set(fates) != {"nack"}:
            chosen, fates, multiple = [self.flying[at]], [self._fate(name)], False
        for each in chosen:
            self.flying.remove(each)
        self.accepted += [
            each[1] for each, fate in zip(chosen, fates, strict=True) if fate == "ack"
        ]
        returned = [
            Returned(each[1], Destination(b"cdc", b"orders"), UNROUTABLE)
            for each, fate in zip(chosen, fates, strict=True)
            if fate == "return"
        ]
        return [*returned, Confirm(tag, multiple, "nack" not in fates)]


def batch(numbers: range, keys: int = 0) -> pa.RecordBatch:
    made = rows(numbers, destination=DESTINATION)
    return with_column(made, "key", [b"%d" % (n % keys) if keys else None for n in numbers])


def outbox(
    broker: Broker,
    retry: Retry = THRICE,
    *,
    most_rows: int = 50,
    most_bytes: int = 1 << 20,
    **given: Any,
) -> Outbox:
    limits = Limits(rows=most_rows, bytes=most_bytes, timeout_s=30)
    return Outbox(broker, limits, retry, clock=lambda: broker.now_s, chance=lambda: 1.0, **given)


@pytest.mark.parametrize("number", range(30))
def test_every_message_is_accepted_or_fails_once_and_keys_stay_in_order(
    number: int, seed: int
) -> None:
    rng = random.Random(f"{seed} {number}")
    keys = rng.choice([0, 1, 3, 20, 1000])
    fates: dict[bytes, Fate] = {}

    def fate(name: bytes) -> Fate:
        chance = rng.random()
        decided = fates.setdefault(name, "return" if chance < 0.05 else "ack")
        return "nack" if decided == "ack" and chance > 0.9 else decided

    broker = Broker(fate, rng)
    made = outbox(broker, most_rows=rng.choice([1, 7, 50]), retry=Retry(attempts=50))
    messages, failed = 0, []
    for start in range(0, 300, 60):
        made.take(batch(range(start, start + 60), keys))
        receipt = made.flush(end=rng.random() < 0.5)
        messages += receipt.messages
        failed += [each.message["id"][0].as_py() for each in receipt.failures]
    receipt = made.flush()
    messages += receipt.messages
    failed += [each.message["id"][0].as_py() for each in receipt.failures]
    assert made.idle
    assert messages == len(broker.accepted)
    assert sorted(broker.accepted + failed) == sorted(message_id(n) for n in range(300))
    numbers = {message_id(n): n for n in range(300)}
    by_key: dict[int, list[int]] = defaultdict(list)
    for name in broker.accepted:
        by_key[numbers[name] % keys if keys else 0].append(numbers[name])
    assert all(found == sorted(found) for found in by_key.values())


def test_nothing_of_a_key_follows_a_refused_message() -> None:
    broker = Broker(lambda name: "return" if name == message_id(4) else "ack")
    made = outbox(broker)
    made.take(batch(range(12), keys=3))
    receipt = made.flush()
    failed = [(each.message["id"][0].as_py(), each.outcome.code) for each in receipt.failures]
    assert failed == [
        (message_id(4), "AMQP_312"), (message_id(7), "UNSENT"), (message_id(10), "UNSENT"),
    ]  # fmt: skip
    assert receipt.messages == 9
    assert receipt.upto is None
    assert not {message_id(7), message_id(10)} & set(broker.sent)


def test_without_blocks_others_of_the_key_follow() -> None:
    broker = Broker(lambda name: "return" if name == message_id(4) else "ack")
    made = outbox(broker, blocks=False)
    made.take(batch(range(12), keys=3))
    assert [each.outcome.code for each in made.flush().failures] == ["AMQP_312"]
    assert len(broker.accepted) == 11


def test_without_order_a_key_has_many_in_flight() -> None:
    broker = Broker(lambda name: "ack")
    broker.silent = True
    made = outbox(broker, ordered=False, blocks=False)
    made.take(with_column(batch(range(40)), "key", [None] * 40))
    assert len(broker.flying) == 40
    broker.silent = False
    assert made.flush().messages == 40


def test_a_message_that_is_never_taken_fails_if_others_are() -> None:
    broker = Broker(lambda name: "nack" if name == message_id(0) else "ack")
    made = outbox(broker)
    made.take(batch(range(20), keys=10))
    receipt = made.flush()
    assert [(each.outcome.code, each.outcome.attempts) for each in receipt.failures] == [
        ("AMQP_NACK", 3), ("UNSENT", 0),
    ]  # fmt: skip
    assert receipt.failures[0].outcome.verdict is Verdict.RETRY
    assert receipt.messages == 18
    assert broker.sent.count(message_id(0)) == 3


def test_a_broker_that_takes_nothing_is_full() -> None:
    made = outbox(Broker(lambda name: "nack"))
    made.take(batch(range(5), keys=5))
    with pytest.raises(SinkFullError, match="a queue is full") as caught:
        made.flush()
    assert caught.value.hint


def test_a_message_that_is_never_taken_ends_its_batch(tmp_path: Path) -> None:
    """GIVEN a batch of one message that the broker never takes THEN it fails after a minute, and in
    a release at once."""
    now_s = 1_763_491_200.0
    lane = Lane(pipeline="p", folder=tmp_path, retry=THRICE)

    def attempt(found: pa.RecordBatch) -> int:
        doubts = Doubts(lane, now_s=lambda: now_s)
        doubts.open(ORIGIN)
        made = outbox(Broker(lambda name: "nack"), doubts=doubts)
        made.take(found)
        return len(made.flush().failures)

    with pytest.raises(SinkFullError):
        attempt(batch(range(1), keys=1))
    now_s += 59
    with pytest.raises(SinkFullError):
        attempt(batch(range(1), keys=1))
    now_s += 1
    assert attempt(batch(range(1), keys=1)) == 1
    both = batch(range(2), keys=2)
    at = both.schema.get_field_index("ordinal")
    again = pa.array([READS | RELEASED, READS | RELEASED | 1], pa.uint64())
    assert attempt(both.set_column(at, both.schema.field(at), again)) == 2


def test_a_broker_that_is_full_is_noticed_in_the_middle_of_a_batch() -> None:
    broker = Broker(lambda name: "nack")
    made = outbox(broker)
    made.take(batch(range(5), keys=5))

    def flush_often() -> None:
        for _ in range(1000):
            made.flush(end=False)
            broker.now_s += 0.1

    with pytest.raises(SinkFullError):
        flush_often()


def test_a_broker_that_does_not_answer() -> None:
    broker = Broker(lambda name: "ack")
    broker.silent = True
    made = outbox(broker)
    made.take(batch(range(5), keys=5))
    with pytest.raises(SinkUnreachableError, match="confirmed no message within 30 s"):
        made.flush()


def test_nothing_is_sent_while_the_broker_blocks() -> None:
    broker = Broker(lambda name: "ack")
    broker.blocked = True
    made = outbox(broker)
    made.take(batch(range(5), keys=5))
    upto = made.flush(end=False).upto
    assert upto is not None
    assert upto < position(0)
    assert broker.sent == []
    broker.now_s += 1000
    broker.blocked = False
    assert made.flush().messages == 5


def test_limits_of_what_is_in_flight() -> None:
    broker = Broker(lambda name: "ack")
    made = outbox(broker, most_rows=7)
    made.take(batch(range(100), keys=100))
    assert made.flush().messages == 100
    assert 0 < broker.largest <= 7
    broker = Broker(lambda name: "ack")
    made = outbox(broker, most_bytes=100)
    sizes = [b"x" * size for size in (40, 40, 40, 500, 90, 90)]
    made.take(with_column(batch(range(6), keys=6), "payload", [*sizes]))
    assert made.flush().bytes == 800
    assert 0 < broker.largest <= 2


def test_a_flush_in_the_middle_reports_what_is_decided() -> None:
    broker = Broker(lambda name: "nack" if name == message_id(3) else "ack")
    made = outbox(broker, retry=Retry(attempts=1000, max_elapsed_s=10**6))
    made.take(batch(range(10), keys=10))
    receipt = made.flush(end=False)
    while receipt.messages < 9:
        following = made.flush(end=False)
        assert following.upto is not None
        receipt = type(receipt)(messages=receipt.messages + following.messages, upto=following.upto)
    assert receipt.upto is not None
    assert position(2) <= receipt.upto < position(3)


def test_what_is_accepted_is_noted(tmp_path: Path) -> None:
    noted = Acknowledged(tmp_path, history="h", lane=0)
    noted.open(ORIGIN)
    broker = Broker(lambda name: "return" if name == message_id(4) else "ack")
    made = outbox(broker, acknowledged=noted)
    made.take(batch(range(9), keys=9))
    made.flush()
    noted.close()
    noted.open(ORIGIN)
    missing = noted.missing(batch(range(12), keys=12))
    noted.close()
    assert missing["id"].to_pylist() == [message_id(n) for n in (4, 9, 10, 11)]


def test_messages_of_one_id_are_told_apart_by_destination() -> None:
    """GIVEN one id for two destinations WHEN the second one is unroutable THEN it fails."""
    broker = Broker(lambda name: "ack")
    broker.silent = True
    made = outbox(broker, ordered=False)
    both = with_column(batch(range(2)), "destination", [b"cdc/a", b"cdc/b"])
    made.take(with_column(both, "id", [b"same", b"same"]))
    answers: list[Confirm | Returned] = [
        Returned(b"same", Destination(b"cdc", b"b"), UNROUTABLE),
        Confirm(2, True, True),
    ]
    broker.receive = lambda timeout_s: [answers.pop(0)] if answers else []  # type: ignore[method-assign]
    receipt = made.flush()
    [failure] = receipt.failures
    assert failure.message["destination"][0].as_py() == b"cdc/b"
    assert receipt.messages == 1


def test_empty_batches_are_nothing() -> None:
    made = outbox(Broker(lambda name: "ack"))
    made.take(pa.RecordBatch.from_pylist([], schema=MESSAGES))
    assert made.idle
    assert made.flush().messages == 0
