"""The bulk path: messages into librdkafka's queue, failures out of its delivery reports.

librdkafka reports failed messages only; an empty queue means that all others are acknowledged. Its
own message timeout is off: a long queue may take long. Instead, the queue counts as stalled when no
message at all is acknowledged for `timeout_s`.

One `produce` call per message is the fastest way into librdkafka from Python. `produce_batch` takes
neither headers nor timestamps, and was slower where the two could be compared.
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
from tailrace.sinks.kafka.client import client_config, create_client, wait_for_cluster
from tailrace.sinks.kafka.failures import Events, cause, translate_error
from tailrace.sinks.kafka.topics import Cluster, missing_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from confluent_kafka import Message

    from tailrace.errors import TailraceError
    from tailrace.sinks.kafka.settings import Kafka

    Headers = list[tuple[str, str | bytes | None]] | None
    Outgoing = tuple[str, bytes | None, bytes | None, int, bytes, int, Headers]
    """Topic, value, key, partition (`BY_KEY`), id for errors, timestamp in ms, headers."""

_PURGED = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
_POLL_ROWS = 5000
_POLL_S = 0.2
_QUEUE_FULL_POLL_S = 0.05
_MAX_FAILURES = 1000
_ABORT_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedMessage:
    """A message that was not delivered, and why."""

    error: KafkaError
    id: str
    topic: str
    size: int

    def __str__(self) -> str:
        return f"message {self.id!r} to topic {self.topic}"


class Publisher:
    """One producer: idempotent, or transactional if it has a transactional id."""

    def __init__(
        self,
        settings: Kafka,
        *,
        name: str,
        transactional_id: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._name = name
        self._events = Events()
        self._clock = clock
        self._failures: list[FailedMessage] = []
        self._began_s: float | None = None
        """When the open transaction began."""
        self._producer = create_client(
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
                **client_config(settings, self._events, name=name),
            },
        )

    def connect(self) -> None:
        """Wait until the cluster answers."""
        wait_for_cluster(
            self._producer,
            self._events,
            bootstrap=self._settings.bootstrap,
            timeout_s=self._settings.timeout_s,
            clock=self._clock,
        )

    def refresh_metadata(self, topic: str) -> None:
        """Fetch the present number of partitions of a topic."""
        self._call(partial(self._producer.list_topics, topic, self._settings.timeout_s))

    def publish(self, messages: Iterable[Outgoing]) -> None:
        """Enqueue messages in order; blocks while the queue is full."""
        remaining = iter(messages)
        while self._enqueue(islice(remaining, _POLL_ROWS)):
            self._call(partial(self._producer.poll, 0))
            self._raise_failures()

    def put(self, topic: str, partition: int, *, key: bytes, value: bytes | None) -> None:
        """Enqueue one of the sink's own records."""
        self._enqueue([(topic, value, key, partition, key, 0, None)])

    def _enqueue(self, messages: Iterable[Outgoing]) -> int:
        produce, on_failure, count = self._producer.produce, self._on_failure, 0
        for topic, value, key, partition, name, timestamp_ms, headers in messages:
            report = partial(on_failure, name)
            count += 1
            try:
                produce(topic, value, key, partition, report, None, timestamp_ms, headers)
            except BufferError:
                self._retry_while_full(
                    partial(
                        produce, topic, value, key, partition, report, None, timestamp_ms, headers
                    )
                )
            except KafkaException as error:
                raise self._produce_error(error, name, topic) from error
        return count

    def _retry_while_full(self, produce: Callable[[], None]) -> None:
        stall = _StallTimer(self._settings.timeout_s, self._clock)
        while True:
            self._call(partial(self._producer.poll, _QUEUE_FULL_POLL_S))
            self._raise_failures()
            try:
                produce()
            except BufferError:
                stall.check(len(self._producer), self._stall_error)
            else:
                return

    def drain(self) -> None:
        """Wait until every message in flight is acknowledged."""
        stall = _StallTimer(self._settings.timeout_s, self._clock)
        while remaining := self._call(partial(self._producer.flush, _POLL_S)):
            self._raise_failures()
            stall.check(remaining, self._stall_error)
        self._raise_failures()
        self._events.clear()

    def begin(self) -> None:
        """Begin a transaction unless one is open."""
        if self._began_s is None:
            self._call(self._producer.begin_transaction)
            self._began_s = self._clock()

    def commit(self) -> None:
        """Commit the transaction.

        After an error the outcome is unknown; the next producer with the id reads it back.
        """
        self._retry(self._producer.commit_transaction)
        self._began_s = None

    @property
    def transaction_age_s(self) -> float | None:
        """How long the transaction has been open; None if none is open."""
        return None if self._began_s is None else self._clock() - self._began_s

    def explain(self, error: TailraceError) -> TailraceError:
        """Tell a timed-out transaction from fencing.

        A coordinator that aborts an overdue transaction raises the producer epoch, just as a second
        producer with the same id does, so the client gets the same error for both.
        """
        limit_s = self._settings.transaction_timeout_s
        if not isinstance(error, SinkFencedError) or (self.transaction_age_s or 0) <= limit_s:
            return error
        late = SinkUnreachableError(
            f"Kafka aborted the transaction after {limit_s:g} s",
            hint="Raise transaction_timeout_s, or lower the pipeline's batch_rows.",
        )
        late.__cause__ = error
        return late

    def fence(self) -> None:
        """Fence all earlier producers with the transactional id and abort their transactions."""
        self._retry(self._producer.init_transactions)

    def close(self) -> None:
        """Close at once and abort the open transaction, which would hold consumers up.

        `Producer.close` waits for the abort without a limit, and fails after a fatal error.
        """
        steps: list[Callable[[], object]] = [self._producer.purge, partial(self._producer.poll, 0)]
        if self._began_s is not None:
            steps.append(partial(self._producer.abort_transaction, _ABORT_TIMEOUT_S))
        for step in steps:
            with contextlib.suppress(KafkaException, SystemError):
                step()
        # Delivery reports that were never called refer to this object and keep the producer alive.
        del self._producer

    def _retry(self, call: Callable[[float], None]) -> None:
        """Make a transactional call, and repeat it while librdkafka calls its error retriable."""
        deadline = self._clock() + self._settings.timeout_s
        while True:
            try:
                call(min(1.0, self._settings.timeout_s))
            except (KafkaException, SystemError) as error:
                reason = cause(error)
                if reason is None:
                    raise
                self._producer.poll(0)
                if not reason.retriable() or self._clock() > deadline:
                    raise self._events.translate_error(reason, self._cluster) from error
            else:
                return

    def _call(self, call: Callable[[], Any]) -> Any:
        """Make a call; any call may raise the fatal error of an earlier one."""
        try:
            return call()
        except (KafkaException, SystemError) as error:
            reason = cause(error)
            if reason is None:
                raise
            raise self._events.translate_error(reason, self._cluster) from error

    @property
    def _cluster(self) -> str:
        return f"Kafka at {self._settings.bootstrap}"

    def _stall_error(self) -> TailraceError:
        error = self._events.translate_error(None, self._cluster)
        stalled = f"nothing acknowledged for {self._settings.timeout_s:g} s"
        return type(error)(f"{error}; {stalled}", hint=error.hint)

    def _on_failure(self, name: bytes, error: KafkaError, message: Message) -> None:
        if len(self._failures) < _MAX_FAILURES:
            self._failures.append(
                FailedMessage(
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
        # One failure purges the rest of the queue: report the message that caused it.
        first = next((item for item in failures if item.error.code() not in _PURGED), failures[0])
        if first.error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            raise self._too_large([item for item in failures if item.topic == first.topic])
        if first.error.code() == KafkaError._DESTROY:
            raise self._partition_dropped(first)
        if first.error.code() in _PURGED and (reason := self._transaction_failure()):
            raise translate_error(reason, self._cluster)
        raise translate_error(first.error, str(first))

    def _transaction_failure(self) -> KafkaError | None:
        """Why the open transaction must be aborted; None if there is no reason.

        librdkafka drops all messages of such a transaction, and refuses further ones, without the
        reason: a missing right is of the transaction, not of a message. It gives the reason to a
        call that the transaction does not allow. A transaction is open, so the call has no effect.
        """
        if self._began_s is None:
            return None
        try:
            self._producer.begin_transaction()
        except (KafkaException, SystemError) as error:
            reason = cause(error)
            return None if reason is None or reason.code() == KafkaError._STATE else reason
        return None

    def _partition_dropped(self, failed: FailedMessage) -> TailraceError:
        """Why librdkafka dropped a partition with messages in flight.

        Either its topic was deleted, or its broker left the cluster.
        """
        cluster = Cluster(self._settings, name=self._name)
        if cluster.partitions([failed.topic])[failed.topic] is None:
            return missing_topic(failed.topic)
        return SinkUnreachableError(f"{failed}: its broker left the cluster")

    def _too_large(self, failures: list[FailedMessage]) -> TailraceError:
        """Name the large message, if it is one.

        A broker rejects the whole batch of the producer: one message in it may be too large, or
        only all of them together.
        """
        topic = failures[0].topic
        config = Cluster(self._settings, name=self._name).config(topic)
        limit = int(config.get("max.message.bytes", 0))
        large = [item for item in failures if item.size > limit]
        if large:
            allowed = f", the topic's max.message.bytes is {limit}" if limit else ""
            return PoisonedError(f"{large[0]} has {large[0].size} bytes{allowed}")
        return SinkRefusedError(
            f"topic {topic} accepts batches of at most {limit} bytes, and the sink's are larger",
            hint=f"Set max_message_bytes: {limit} for the sink, or raise max.message.bytes.",
        )

    def _produce_error(self, error: KafkaException, name: bytes, topic: str) -> TailraceError:
        reason = cause(error)
        what = f"message {name.decode('utf-8', 'replace')!r} to topic {topic}"
        if reason is None:
            return SinkUnreachableError(f"{what}: {error}")
        if reason.code() == KafkaError._FATAL:
            # The producer failed earlier; the next call raises the original error.
            self._call(partial(self._producer.poll, _POLL_S))
        if reason.code() == KafkaError._STATE and (failure := self._transaction_failure()):
            # Delivery reports name the message, if the failure is of one.
            self._call(partial(self._producer.flush, _POLL_S))
            self._raise_failures()
            return translate_error(failure, self._cluster)
        if reason.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            limit = self._settings.max_message_bytes
            return PoisonedError(
                f"{what} is larger than max_message_bytes, which is {limit}",
                hint="Filter it out, or raise max_message_bytes here and for the topic.",
            )
        return translate_error(reason, what)


def _transactional(settings: Kafka, transactional_id: str) -> dict[str, Any]:
    timeout_ms = int(settings.transaction_timeout_s * 1000)
    return {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
        "message.timeout.ms": timeout_ms,
    }


class _StallTimer:
    """Fails when the number of unacknowledged messages stays the same for too long."""

    def __init__(self, timeout_s: float, clock: Callable[[], float]) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._remaining = -1
        self._since = clock()

    def check(self, remaining: int, error: Callable[[], TailraceError]) -> None:
        """Note how many messages remain; raise if the number has not changed for `timeout_s`."""
        now = self._clock()
        if remaining != self._remaining:
            self._remaining, self._since = remaining, now
        elif now - self._since > self._timeout_s:
            raise error()
