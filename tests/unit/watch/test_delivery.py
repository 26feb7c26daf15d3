"""Messages wait until they are accepted, in order, each channel for itself."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tailrace.backoff import Backoff
from tailrace.config.alerts import Channel
from tailrace.errors import AlertUndeliveredError
from tailrace.watch import delivery
from tailrace.watch.delivery import Delivery, Outbox
from tests.unit.watch.mailing import MailServer
from tests.unit.watch.test_channels import MESSAGE
from tests.waiting import wait_for

if TYPE_CHECKING:
    import pytest

    from tailrace.watch.message import Message

CHANNEL = Channel.model_validate({"webhook": {"url": "https://a.example"}})
NOW = datetime.now(UTC).isoformat()


def message(id_: str, **more: str) -> Message:
    return replace(MESSAGE, id=id_, at=NOW, **more)  # type: ignore[arg-type]


class Receiver:
    """Accepts messages, or refuses the next ones."""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.refused: set[str] = set()
        self.tried: list[str] = []
        self.accepted: list[str] = []
        self.done: list[str] = []

    def send(self, _channel: Channel, given: Message) -> str:
        self.tried.append(given.id)
        if self.refusals or given.id in self.refused:
            self.refusals -= bool(self.refusals)
            raise AlertUndeliveredError("no")
        self.accepted.append(given.id)
        return ""

    def outbox(self) -> Outbox:
        return Outbox(
            "ops", CHANNEL, lambda each: self.done.append(each.id),
            backoff=lambda: Backoff(first_s=0.01, max_s=0.02), send=self.send,
        )  # fmt: skip


def test_messages_are_sent_in_order_until_they_are_accepted() -> None:
    """GIVEN a receiver that refuses three times WHEN two messages are sent THEN both arrive, once
    and in order, and only then they are done."""
    receiver = Receiver(refusals=3)
    outbox = receiver.outbox()
    outbox.put(message("1"))
    outbox.put(message("2"))
    assert outbox.pending == 2
    outbox.start()
    wait_for(lambda: receiver.done == ["1", "2"])
    assert receiver.tried == ["1", "1", "1", "1", "2"]
    wait_for(lambda: outbox.pending == 0)
    assert outbox.error == ""
    outbox.close(10)


def test_a_message_that_is_refused_delays_no_other_alert() -> None:
    """GIVEN a receiver that refuses one message for ever THEN those of other alerts arrive, and
    those of the same alert keep their order."""
    receiver = Receiver()
    receiver.refused.add("1")
    outbox = receiver.outbox()
    for each in (message("1"), message("2"), message("3", alert="a3"), message("4", alert="a4")):
        outbox.put(each)
    outbox.start()
    wait_for(lambda: receiver.accepted == ["3", "4"])
    wait_for(lambda: receiver.tried[-3:] == ["1", "1", "1"])
    receiver.refused.clear()
    wait_for(lambda: receiver.accepted == ["3", "4", "1", "2"])
    outbox.close(10)


def test_a_mail_with_a_recipient_that_is_refused() -> None:
    """GIVEN two recipients of which the server refuses one THEN the other one gets each message
    once, and the channel shows the refusal."""
    with MailServer(refused=("left@b.c",), farewell="451 later") as server:
        settings = {
            "host": "127.0.0.1", "port": server.port, "tls": "none", "sender": "a@b.c",
            "to": ["left@b.c", "dba@b.c"],
        }  # fmt: skip
        done: list[str] = []
        channel = Channel.model_validate({"email": settings})
        outbox = Outbox("mail", channel, lambda each: done.append(each.id))
        outbox.start()
        outbox.put(message("1"))
        outbox.put(message("2"))
        wait_for(lambda: done == ["1", "2"])
        outbox.close(10)
        assert outbox.error == "the mail server refuses 1 of the recipients"
        assert len(server.mails) == 2


def test_a_repetition_that_waits_is_enough() -> None:
    receiver = Receiver()
    outbox = receiver.outbox()
    for each in (message("1", kind="repeat"), message("2", kind="repeat"), message("3")):
        outbox.put(each)
    assert receiver.done == ["2"]
    outbox.start()
    outbox.close(10)
    assert receiver.accepted == ["1", "3"]


def test_old_messages_are_dropped() -> None:
    receiver = Receiver()
    outbox = receiver.outbox()
    old = (datetime.now(UTC) - timedelta(days=4)).isoformat()
    outbox.put(replace(MESSAGE, id="old", at=old))
    outbox.put(message("new"))
    outbox.start()
    outbox.close(10)
    assert (receiver.accepted, receiver.done) == (["new"], ["old", "new"])


def test_messages_that_wait_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "MAX_PENDING", 2)
    receiver = Receiver()
    outbox = receiver.outbox()
    for number in range(4):
        outbox.put(message(str(number)))
    assert (outbox.pending, receiver.done) == (2, ["1", "2"])


def test_a_stop_does_not_wait_for_a_receiver_that_refuses() -> None:
    receiver = Receiver(refusals=1000)
    outbox = receiver.outbox()
    outbox.put(message("1"))
    outbox.start()
    outbox.close(60)
    assert receiver.done == []
    assert outbox.error == "no"


def test_an_unknown_error_shows_its_type_only() -> None:
    outbox = Outbox("ops", CHANNEL, lambda _: None, send=_broken)
    outbox.put(message("1"))
    outbox.start()
    wait_for(lambda: outbox.error)
    assert outbox.error == "KeyError"
    outbox.close(0)


def _broken(_channel: Channel, _message: Message) -> str:
    raise KeyError("https://user:s3cret@a.example")


def test_a_channel_that_hangs_does_not_delay_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN two channels of which one does not answer WHEN both get a message THEN the other one
    has it, and a message for a channel that was removed is done."""
    release, accepted, done = threading.Event(), [], []

    def send(_channel: Channel, given: Message) -> str:
        if given.channel == "slow":
            release.wait()
        accepted.append(given.channel)
        return ""

    monkeypatch.setattr(delivery.Outbox.__init__, "__kwdefaults__", {
        "backoff": delivery.retry_backoff, "send": send,
    })  # fmt: skip
    both = Delivery({"slow": CHANNEL, "fast": CHANNEL}, lambda each: done.append(each.channel))
    kept = [message("1", channel="slow"), message("2", channel="gone")]
    both.start(kept)
    both.put(message("3", channel="fast"))
    wait_for(lambda: accepted == ["fast"])
    assert set(done) >= {"gone"}
    release.set()
    both.close(10)
    assert accepted == ["fast", "slow"]
