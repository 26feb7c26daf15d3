"""The bulk path: rows into librdkafka's queue, failures out of its delivery reports.

librdkafka calls back for failures alone; that everything is delivered shows by an empty queue. Its
own limits on time are off: a queue may take long, and counts as stuck only when no message at all
is acknowledged for `timeout_s`.

`produce` a message is the quickest there is. `produce_batch` takes neither headers nor timestamps,
and was slower where it could be compared.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, Producer

from tailrace.errors import PoisonedError, SinkFencedError, SinkRefusedError, SinkUnreachableError
from tailrace.sinks.kafka.client import base, connected, made
from tailrace.sinks.kafka.failures import Events, cause, translate_error
from tailrace.sinks.kafka.topics import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from confluent_kafka import Message

    from tailrace.config import Kafka
    from tailrace.errors import TailraceError

    Headers = list[tuple[str, str | bytes | None]] | None
    Outgoing = tuple[str, bytes | None, bytes | None, int, bytes, int, Headers]
    """Topic, value, key, partition (-1: by the key), what errors call it, milliseconds, headers."""

_PURGED = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
_POLL_ROWS = 5000
_LOOK_S = 0.2
_KEPT_FAILURES = 1000
_GOODBYE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Undelivered:
    """A message that Kafka did not take, and why."""

    error: KafkaError
    id: str
    topic: str
    size: int

    def __str__(self) -> str:
        return f"message {self.id!r} to topic {self.topic}"


class Publisher:
    """One producer: idempotent, or transactional if it has a transactional id."""

    def __init__(self, settings: Kafka, *, name: str, transactional_id: str = "") -> None:
        self._settings = settings
        self._name = name
        self._events = Events()
        self._failures: list[Undelivered] = []
        self._began_s: float | None = None
        """When the open transaction began."""
        self._producer = made(
            Producer,
            {
                "enable.idempotence": True,
                "acks": "all",
                "partitioner": "murmur2",
                "compression.type": settings.compression,
                "linger.ms": settings.linger_ms,
                "message.max.bytes": settings.max_message_bytes,
                "queue.buffering.max.kbytes": settings.queue_bytes // 1024,
                "message.timeout.ms": 0,
                "topic.metadata.propagation.max.ms": int(settings.timeout_s * 500),
                **(_transactional(settings, transactional_id) if transactional_id else {}),
                "delivery.report.only.error": True,
                **base(settings, self._events, name=name),
            },
        )

    def connect(self) -> None:
        """Wait until the cluster answers."""
        connected(
            self._producer,
            self._events,
            bootstrap=self._settings.bootstrap,
            timeout_s=self._settings.timeout_s,
        )

    def look_at(self, topic: str) -> None:
        """Learn how many partitions a topic has by now."""
        self._serve(partial(self._producer.list_topics, topic, self._settings.timeout_s))

    def publish(self, messages: Iterable[Outgoing]) -> None:
        """Put all of them on their way, in their order."""
        left = iter(messages)
        while self._enqueue(islice(left, _POLL_ROWS)):
            self._serve(partial(self._producer.poll, 0))
            self._raise_failures()

    def put(self, topic: str, partition: int, *, key: bytes, value: bytes | None) -> None:
        """Put one message of our own on its way."""
        self._enqueue([(topic, value, key, partition, key, 0, None)])

    def _enqueue(self, messages: Iterable[Outgoing]) -> int:
        produce, undelivered, count = self._producer.produce, self._undelivered, 0
        for topic, value, key, number, name, stamp, headers in messages:
            report = partial(undelivered, name)
            count += 1
            try:
                produce(topic, value, key, number, report, None, stamp, headers)
            except BufferError:
                self._wait_for_room(
                    partial(produce, topic, value, key, number, report, None, stamp, headers)
                )
            except KafkaException as error:
                raise self._refused(error, name, topic) from error
        return count

    def _wait_for_room(self, produce: Callable[[], None]) -> None:
        patience = _Patience(self._settings.timeout_s)
        while True:
            self._serve(partial(self._producer.poll, 0.05))
            self._raise_failures()
            try:
                produce()
            except BufferError:
                patience.check(len(self._producer), self._given_up)
            else:
                return

    def settle(self) -> None:
        """Wait until everything is acknowledged."""
        patience = _Patience(self._settings.timeout_s)
        while left := self._serve(partial(self._producer.flush, _LOOK_S)):
            self._raise_failures()
            patience.check(left, self._given_up)
        self._raise_failures()
        self._events.clear()

    def begin(self) -> None:
        """Begin a transaction, if none is open."""
        if self._began_s is None:
            self._serve(self._producer.begin_transaction)
            self._began_s = time.monotonic()

    def commit(self) -> None:
        """Commit it. After an error nobody knows; the next life of the id finds out."""
        self._patiently(self._producer.commit_transaction)
        self._began_s = None

    @property
    def within_s(self) -> float | None:
        """For how long a transaction has been open; None if there is none."""
        return None if self._began_s is None else time.monotonic() - self._began_s

    def named(self, error: TailraceError) -> TailraceError:
        """An error by its right name: what takes too long is ended by the coordinator in the same
        way as by a second life of the id."""
        limit_s = self._settings.transaction_timeout_s
        if not isinstance(error, SinkFencedError) or (self.within_s or 0) <= limit_s:
            return error
        late = SinkUnreachableError(
            f"a transaction was ended by Kafka after {limit_s:g} s",
            hint="Raise transaction_timeout_s, or lower the pipeline's batch_rows.",
        )
        late.__cause__ = error
        return late

    def fence(self) -> None:
        """End all earlier lives of the transactional id, and what they left open."""
        self._patiently(self._producer.init_transactions)

    def close(self) -> None:
        """Let go, at once. An open transaction is given up, so that it holds no consumer up.

        `Producer.close` would wait for that as long as it takes, and fails after a fatal error.
        """
        steps: list[Callable[[], object]] = [self._producer.purge, partial(self._producer.poll, 0)]
        if self._began_s is not None:
            steps.append(partial(self._producer.abort_transaction, _GOODBYE_S))
        for step in steps:
            with contextlib.suppress(KafkaException, SystemError):
                step()
        # Reports that were not called hold this object, and would keep the producer alive.
        del self._producer

    def _patiently(self, call: Callable[[float], None]) -> None:
        """A call that may be repeated while librdkafka says so."""
        deadline = time.monotonic() + self._settings.timeout_s
        while True:
            try:
                call(min(1.0, self._settings.timeout_s))
            except (KafkaException, SystemError) as error:
                said = cause(error)
                if said is None:
                    raise
                self._producer.poll(0)
                if not said.retriable() or time.monotonic() > deadline:
                    raise self._events.translate_error(said, self._where) from error
            else:
                return

    def _serve(self, call: Callable[[], Any]) -> Any:
        """A call that may raise what has happened since."""
        try:
            return call()
        except (KafkaException, SystemError) as error:
            said = cause(error)
            if said is None:
                raise
            raise self._events.translate_error(said, self._where) from error

    @property
    def _where(self) -> str:
        return f"Kafka at {self._settings.bootstrap}"

    def _given_up(self) -> TailraceError:
        found = self._events.translate_error(None, self._where)
        late = f"nothing acknowledged for {self._settings.timeout_s:g} s"
        return type(found)(f"{found}; {late}", hint=found.hint)

    def _undelivered(self, name: bytes, error: KafkaError, message: Message) -> None:
        if len(self._failures) < _KEPT_FAILURES:
            self._failures.append(
                Undelivered(
                    error=error,
                    id=name.decode("utf-8", "replace"),
                    topic=message.topic() or "",
                    size=len(message.value() or b"") + len(message.key() or b""),
                )
            )

    def _raise_failures(self) -> None:
        if not self._failures:
            return
        failures, self._failures = self._failures, []
        # What fails first takes others with it.
        first = next((one for one in failures if one.error.code() not in _PURGED), failures[0])
        if first.error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            raise self._too_large([one for one in failures if one.topic == first.topic])
        raise translate_error(first.error, str(first))

    def _too_large(self, failures: list[Undelivered]) -> TailraceError:
        """A broker refuses a whole batch: it is one of them, or only all of them together."""
        topic = failures[0].topic
        config = Cluster(self._settings, name=self._name).config(topic)
        limit = int(config.get("max.message.bytes", 0))
        large = [one for one in failures if one.size > limit]
        if large:
            most = f", the topic's max.message.bytes is {limit}" if limit else ""
            return PoisonedError(f"{large[0]} has {large[0].size} bytes{most}")
        return SinkRefusedError(
            f"topic {topic} takes {limit} bytes at once, and batches are larger",
            hint=f"Set max_message_bytes: {limit} for the sink, or raise max.message.bytes.",
        )

    def _refused(self, error: KafkaException, name: bytes, topic: str) -> TailraceError:
        said = cause(error)
        what = f"message {name.decode('utf-8', 'replace')!r} to topic {topic}"
        if said is None:
            return SinkUnreachableError(f"{what}: {error}")
        if said.code() == KafkaError._FATAL:
            # The producer has come to its end before; what ended it waits to be served.
            self._serve(partial(self._producer.poll, _LOOK_S))
        if said.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            most = self._settings.max_message_bytes
            return PoisonedError(
                f"{what} has more than max_message_bytes, which is {most}",
                hint="Filter it out, or raise max_message_bytes here and for the topic.",
            )
        return translate_error(said, what)


def _transactional(settings: Kafka, transactional_id: str) -> dict[str, Any]:
    timeout_ms = int(settings.transaction_timeout_s * 1000)
    return {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
        "message.timeout.ms": timeout_ms,
    }


class _Patience:
    """Ends when a number of messages stays the same for too long."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._left = -1
        self._since = time.monotonic()

    def check(self, left: int, error: Callable[[], TailraceError]) -> None:
        """Note how many are left; raise when it was the same all the time."""
        now = time.monotonic()
        if left != self._left:
            self._left, self._since = left, now
        elif now - self._since > self._timeout_s:
            raise error()
