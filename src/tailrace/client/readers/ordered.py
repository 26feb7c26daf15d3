"""A reader that keeps its own position: every message from a start on, each once, in order.

Nothing is acknowledged, so JetStream does not redeliver what is lost in transit. When a message is
missing, or the consumer is gone, the reader creates a new consumer after its last message.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import nats.errors
import nats.js.errors
from nats.js.api import AckPolicy, ConsumerConfig

from tailrace.backoff import Backoff
from tailrace.client.connection import LOG, reason
from tailrace.client.readers.reader import BATCH, Start, StreamMessage, create_consumer
from tailrace.errors import PositionLostError, SinkError, SinkUnreachableError

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from tailrace.client.connection import Connection
    from tailrace.client.readers.pull import PullConsumer

_INACTIVE_S = 300.0
"""JetStream deletes a consumer that no client has used for this long."""


class OrderedReader:
    """All messages of some subjects from a start on, each once."""

    def __init__(
        self, connection: Connection, stream: str, *subjects: str, start: Start, batch: int = BATCH
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._subjects = subjects
        self._start = start
        self._batch = batch
        self._consumer: PullConsumer | None = None
        self._delivered = 0
        """Messages of the present consumer: JetStream numbers them without gaps."""
        self._last_seq = 0
        self._end_seq = 0
        """End of the stream when the last request expired without a message."""

    @property
    def last_sequence(self) -> int:
        """The last message of the stream that was read, or does not match the subjects."""
        return self._last_seq

    async def open(self) -> None:
        """Create the consumer. Raises at once if the stream is missing or the start is gone."""
        start = Start(sequence=self._last_seq + 1) if self._last_seq else self._start
        if start.sequence is not None:
            await self._check_retained(start.sequence)
        settings = ConsumerConfig(
            # A single subject goes into the singular field: servers before 2.10 have no list.
            filter_subject=self._subjects[0] if len(self._subjects) == 1 else None,
            filter_subjects=[*self._subjects] if len(self._subjects) > 1 else None,
            # Acknowledgements would make JetStream redeliver out of order.
            ack_policy=AckPolicy.NONE,
            inactive_threshold=_INACTIVE_S,
            # The reader can create the consumer again at any time, so it needs neither disk nor
            # replicas.
            mem_storage=True,
            num_replicas=1,
            **start.settings(),  # type: ignore[arg-type]
        )
        consumer = await create_consumer(self._connection, self._stream, settings, self._batch)
        self._consumer, self._delivered = consumer, 0

    async def _check_retained(self, sequence: int) -> None:
        """Raise if the stream no longer has a message, or does not reach it."""
        state = (await self._connection.stream_info(self._stream))["state"]
        if state["first_seq"] > sequence:
            raise PositionLostError(
                f"stream {self._stream} begins at message {state['first_seq']}, after message "
                f"{sequence}, which is the next one to read: changes may be missing",
                hint="Take a new snapshot, and raise the retention of the stream.",
            )
        if state["last_seq"] + 1 < sequence:
            raise PositionLostError(
                f"stream {self._stream} ends at message {state['last_seq']}, before message "
                f"{sequence}, which is the next one to read: the stream was created again",
                hint="Take a new snapshot.",
            )

    async def next(self) -> list[StreamMessage]:
        """Some messages. An empty list: no message came until the request expired."""
        if self._consumer is None:
            await self._reopen()
            assert self._consumer is not None
        delivered = await self._consumer.next()
        messages = self._until_gap(delivered)
        if self._consumer.gap_possible or len(messages) < len(delivered):
            # Created again by the next call, after the last message before the gap.
            await self._delete_consumer()
        elif not delivered:
            await self._skip_unmatched()
        return messages

    def _until_gap(self, delivered: list[Msg]) -> list[StreamMessage]:
        """The messages up to the first one that is missing."""
        messages = []
        for message in delivered:
            metadata = message.metadata
            # The consumer numbers its messages 1, 2, 3: another number means a lost message.
            if metadata.sequence.consumer != self._delivered + 1:
                break
            self._delivered += 1
            self._last_seq = metadata.sequence.stream
            messages.append(
                StreamMessage(
                    self._last_seq,
                    message.data,
                    metadata.num_pending,
                    headers=message.headers or {},
                    subject=message.subject,
                )
            )
        return messages

    async def _skip_unmatched(self) -> None:
        """Advance over messages of other subjects.

        A request that expires without a message proves that no message up to the end of the stream
        at the request's start matches. In a cluster that holds for the replica that the consumer
        reads, so all replicas must be current. Without this, the position of a quiet table would
        fall out of the retention of a busy stream.
        """
        self._last_seq = max(self._last_seq, self._end_seq)
        with contextlib.suppress(SinkError):
            info = await self._connection.stream_info(self._stream)
            replicas = info.get("cluster", {}).get("replicas") or []
            if all(replica["current"] and not replica.get("lag") for replica in replicas):
                self._end_seq = int(info["state"]["last_seq"])

    async def _reopen(self) -> None:
        backoff = Backoff(first_s=0.5, max_s=2.0)
        while True:
            try:
                await self.open()
            except SinkUnreachableError as error:
                delay_s = backoff.next_s()
                LOG.warning(
                    "client.waiting_for_stream stream=%s retry_in_s=%.1f reason=%s",
                    self._stream, delay_s, reason(error),
                )  # fmt: skip
                await asyncio.sleep(delay_s)
            else:
                return

    async def _delete_consumer(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close()
            with contextlib.suppress(nats.errors.Error, nats.js.errors.Error, TimeoutError):
                if self._connection.client.is_connected:
                    await self._connection.jetstream.delete_consumer(self._stream, consumer.name)

    async def close(self) -> None:
        """Delete the consumer."""
        await self._delete_consumer()
