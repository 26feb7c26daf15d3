"""Sends messages, each channel in a thread of its own, until they are accepted.

A receiver that is away or hangs delays its own channel only. A message that was not accepted is
sent again with a growing delay, after those of other alerts: it may be refused for ever. Messages
of one alert keep their order. The id of a message stays the same, so that a receiver can recognise
one that it has accepted without saying so. After three days a message is dropped.
"""

from __future__ import annotations

import threading
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import structlog

from tailrace.backoff import Backoff
from tailrace.errors import AlertUndeliveredError, UnexpectedError
from tailrace.watch.channels import send

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tailrace.config.alerts import Channel
    from tailrace.watch.message import Message

KEEP = timedelta(days=3)
MAX_PENDING = 1000
_ATTEMPTS_AT_END = 2


def retry_backoff() -> Backoff:
    """1 s, 2 s, 4 s … 60 s, with jitter."""
    return Backoff(first_s=1.0, max_s=60.0)


class Outbox:
    """The messages of one channel. `done` is called for each that is delivered or dropped."""

    def __init__(
        self,
        name: str,
        channel: Channel,
        done: Callable[[Message], None],
        *,
        backoff: Callable[[], Backoff] = retry_backoff,
        send: Callable[[Channel, Message], str] = send,
    ) -> None:
        self._channel = channel
        self._done = done
        self._send = send
        self._backoff = backoff()
        self._messages: deque[Message] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._events = structlog.get_logger().bind(channel=name)
        self._thread = threading.Thread(target=self._run, name=f"alerts {name}", daemon=True)
        self.error = ""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def pending(self) -> int:
        """How many messages are not delivered."""
        return len(self._messages)

    def put(self, message: Message) -> None:
        """Send a message, in time. A repetition that waits already is enough."""
        with self._changed:
            if message.kind == "repeat" and any(
                each.kind == "repeat" and each.alert == message.alert for each in self._messages
            ):
                self._done(message)
                return
            self._messages.append(message)
            if len(self._messages) > MAX_PENDING:
                # The first may be under way.
                dropped = self._messages[1]
                del self._messages[1]
                self._drop(dropped, "too many messages wait")
            self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """Send what waits, unless it is not accepted or takes too long."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        failures = 0
        while True:
            with self._changed:
                while not self._messages and not self._stopping:
                    self._changed.wait()
                if not self._messages or (self._stopping and failures >= _ATTEMPTS_AT_END):
                    return
                message = self._messages[0]
            if datetime.now(UTC) - datetime.fromisoformat(message.at) > KEEP:
                self._drop(message, "not delivered within three days")
                self._forget()
                continue
            if self._deliver(message):
                failures = 0
                self._backoff.reset()
                self._done(message)
                self._forget()
                continue
            failures += 1
            delay_s = self._backoff.next_s()
            with self._changed:
                self._messages = deque(
                    sorted(self._messages, key=lambda each: each.alert == message.alert)
                )
                # New messages do not shorten the delay; a stop does.
                self._changed.wait_for(lambda: self._stopping, delay_s)

    def _deliver(self, message: Message) -> bool:
        try:
            refused = self._send(self._channel, message)
        except Exception as failure:
            known = failure if isinstance(failure, AlertUndeliveredError) else None
            # The text of an unknown error may quote an address.
            reason = str(known) if known else type(failure).__name__
            self._events.warning(
                "alert.undelivered",
                code=known.code if known else UnexpectedError.code,
                reason=reason,
                pending=self.pending,
            )
            self.error = reason
            return False
        self.error = refused
        if refused:
            self._events.warning("alert.partly_undelivered", reason=refused)
        self._events.info("alert.delivered", kind=message.kind, check=message.check)
        return True

    def _forget(self) -> None:
        with self._changed:
            self._messages.popleft()

    def _drop(self, message: Message, reason: str) -> None:
        self._events.error("alert.dropped", reason=reason, check=message.check, kind=message.kind)
        self._done(message)


class Delivery:
    """All channels."""

    def __init__(self, channels: Mapping[str, Channel], done: Callable[[Message], None]) -> None:
        self._done = done
        self.outboxes = {name: Outbox(name, each, done) for name, each in channels.items()}

    def start(self, kept: Sequence[Message] = ()) -> None:
        """Start with messages that were not delivered before."""
        for message in kept:
            self.put(message)
        for outbox in self.outboxes.values():
            outbox.start()

    def put(self, message: Message) -> None:
        """Send a message. One of a channel that was removed is forgotten."""
        outbox = self.outboxes.get(message.channel)
        if outbox is None:
            self._done(message)
        else:
            outbox.put(message)

    def close(self, timeout_s: float) -> None:
        """Send what waits, for at most so long."""
        threads = [
            threading.Thread(target=outbox.close, args=(timeout_s,))
            for outbox in self.outboxes.values()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
