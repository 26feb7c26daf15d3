"""Refused topics: how long they wait, and what the ledger says about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import PoisonedError, SinkRefusedError
from tailrace.shadow import ledger, target
from tailrace.shadow.ledger import PartitionCopy
from tailrace.shadow.refusals import RETRY_S, Refusals
from tailrace.shadow.settings import ShadowSink
from tailrace.shadow.source import BrokerTopic
from tailrace.sinks.contract import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

ORDERS = BrokerTopic(id=1, uuid="u-1", name="orders", partitions=1)
METRICS = BrokerTopic(id=2, uuid="u-2", name="metrics", partitions=1)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_refused_topic_waits_for_a_minute() -> None:
    clock = Clock()
    refusals = Refusals(clock=clock, now=lambda: 5.0)
    assert not refusals.waits("u-1")
    refusals.add(ORDERS, PoisonedError("too large", hint="h"))
    assert "u-1" in refusals
    assert refusals.waits("u-1")
    assert not refusals.waits("u-2")
    clock.now += RETRY_S
    assert not refusals.waits("u-1")
    assert "u-1" in refusals


def test_a_request_makes_it_due() -> None:
    refusals = Refusals(clock=Clock())
    refusals.add(ORDERS, PoisonedError("too large"))
    refusals.make_due("u-1")
    assert not refusals.waits("u-1")


def test_the_first_refusal_has_the_time_and_the_last_the_reason() -> None:
    times = iter([5.0, 6.0])
    refusals = Refusals(now=lambda: next(times))
    refusals.add(ORDERS, PoisonedError("too large", hint="h"))
    refusals.add(METRICS, SinkRefusedError("other records"))
    refusals.add(ORDERS, SinkRefusedError("no rights", hint="grant"))
    assert refusals.present() == (
        Refusal(
            destination="metrics", code="SINK_REFUSED", reason="other records",
            hint=SinkRefusedError.default_hint, since_s=6.0,
        ),
        Refusal(
            destination="orders", code="SINK_REFUSED", reason="no rights", hint="grant",
            since_s=5.0,
        ),
    )  # fmt: skip


def test_refusals_of_another_process_are_due() -> None:
    refusals = Refusals(clock=Clock())
    refusals.add(ORDERS, PoisonedError("too large"))
    refusals.load(
        {"u-1": refusals.present()[0], "u-2": Refusal(destination="m", code="c", reason="r")}
    )
    assert refusals.waits("u-1")
    assert not refusals.waits("u-2")
    assert sorted(refusals) == ["u-1", "u-2"]
    refusals.load({})
    assert not refusals.waits("u-1")


def test_a_resumed_topic_is_forgotten() -> None:
    refusals = Refusals()
    added = refusals.add(ORDERS, PoisonedError("too large"))
    assert refusals.remove("u-1") == added
    assert refusals.remove("u-1") is None
    assert refusals.present() == ()


class Message:
    def __init__(self, key: bytes, value: bytes | None) -> None:
        self._key = key
        self._value = value

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes | None:
        return self._value


def test_the_ledger_keeps_the_last_word_about_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = Refusal(destination="orders", code="POISONED", reason="r", hint="h", since_s=5.0)
    copy = PartitionCopy(topic="orders", runs=((0, 3),))
    dumped = ledger.dump_refusal(refusal)
    messages = [
        Message(ledger.OWNER, b""),
        Message(ledger.key_of("u-1", 0), copy.dump()),
        Message(ledger.refusal_key_of("u-1"), dumped),
        Message(ledger.refusal_key_of("u-2"), dumped),
        Message(ledger.refusal_key_of("u-1"), b""),
    ]

    def committed(*_: object, **__: object) -> Iterator[Message]:
        return iter(messages)

    monkeypatch.setattr(target, "committed", committed)
    found = ledger.read_all(ShadowSink(type="shadow"), name="p")
    assert found.copies == {b"u-1/0": copy}
    assert found.refusals == {"u-2": refusal}
    assert ledger.read(ShadowSink(type="shadow"), name="p") == found.copies
