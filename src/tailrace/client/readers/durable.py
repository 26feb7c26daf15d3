"""A reader whose position is on the server: messages under a durable name, until acknowledged.

JetStream redelivers unacknowledged messages some time later, after newer ones. The reader restores
the order: after a restart or a reconnect it waits for redelivered messages first.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import nats.errors
import nats.js.errors
from nats.js.api import AckPolicy, ConsumerConfig

from tailrace.client.connection import translate_errors
from tailrace.client.readers.pull import PullConsumer
from tailrace.client.readers.reader import BATCH, StreamMessage, create_consumer
from tailrace.errors import ConfigError, SinkRefusedError, SinkUnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nats.aio.msg import Msg
    from nats.js.api import ConsumerInfo

    from tailrace.client.connection import Connection
    from tailrace.client.readers.reader import Start

# JetStream stops delivering at this number of unacknowledged messages: enough for consumers that
# acknowledge whole batches, and a limit for those that never do.
_MAX_ACK_PENDING = 10_000
# Acknowledgements are sent without waiting for the server. These are the last ones, in case one is
# lost and JetStream redelivers its message.
_MAX_REMEMBERED = 100_000


class DurableReader:
    """Messages under a durable name, each until it is acknowledged.

    Messages that an earlier process did not acknowledge come first, in order. One reader at a time
    may use a name.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        subject: str,
        start: Start,
        *,
        name: str,
        ack_wait_s: float,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._subject = subject
        self._start = start
        self._name = name
        self._ack_wait_s = ack_wait_s
        self._consumer: PullConsumer | None = None
        self._unacked: dict[int, Msg] = {}
        self._acked: OrderedDict[int, None] = OrderedDict()
        self._redelivered: list[Msg] = []

    async def exists(self) -> bool:
        """Whether the server has a consumer of this name."""
        return await self._info() is not None

    async def delete(self) -> None:
        """Delete the consumer of this name, with its acknowledgements."""
        with (
            translate_errors(f"delete consumer {self._name}"),
            contextlib.suppress(nats.js.errors.NotFoundError),
        ):
            await self._connection.jetstream.delete_consumer(self._stream, self._name)

    async def _info(self) -> ConsumerInfo | None:
        with translate_errors(f"read consumer {self._name}"):
            try:
                info: ConsumerInfo = await self._connection.jetstream.consumer_info(
                    self._stream, self._name
                )
            except nats.js.errors.NotFoundError:
                return None
        return info

    async def open(self) -> None:
        """Resume under the name, or create the consumer and begin at the start."""
        await self._connection.stream_info(self._stream)
        info = await self._info()
        if info is None:
            settings = ConsumerConfig(
                durable_name=self._name,
                filter_subject=self._subject,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=self._ack_wait_s,
                max_ack_pending=_MAX_ACK_PENDING,
                **self._start.settings(),  # type: ignore[arg-type]
            )
            self._consumer = await create_consumer(self._connection, self._stream, settings)
            return
        if info.config.filter_subject != self._subject:
            raise ConfigError(
                f"consumer {self._name!r} reads {info.config.filter_subject}, not {self._subject}",
                hint="Use one durable name per table.",
            )
        self._consumer = PullConsumer(self._connection, self._stream, self._name, batch=BATCH)
        await self._consumer.open()
        self._redelivered = await self._wait_for_redelivery(info, [])

    async def _wait_for_redelivery(self, info: ConsumerInfo, messages: list[Msg]) -> list[Msg]:
        """All unacknowledged messages up to the last one that JetStream delivered, in order.

        Some of them went to a process or a connection that is gone. JetStream redelivers them after
        the ack wait, and newer messages before them. The newer ones wait here. Example: 3, 4 and 5
        were delivered to a process that died; a new process gets 6, 7, then 3, 4, 5, and returns
        3, 4, 5, 6, 7.
        """
        assert self._consumer is not None
        assert info.delivered is not None
        last, missing = info.delivered.stream_seq, info.num_ack_pending or 0
        by_sequence = {message.metadata.sequence.stream: message for message in messages}
        while _count_until(last, by_sequence.keys() | self._unacked.keys()) < missing:
            more = await self._consumer.next()
            by_sequence |= {message.metadata.sequence.stream: message for message in more}
            current = None
            with contextlib.suppress(SinkUnreachableError):
                current = None if more else await self._info()
            if current is not None:
                # Retention may have removed some messages: JetStream does not redeliver these.
                newer = len(by_sequence) - _count_until(last, by_sequence.keys())
                missing = min(missing, (current.num_ack_pending or 0) - newer)
        return [by_sequence[sequence] for sequence in sorted(by_sequence)]

    async def _recover(self, messages: list[Msg]) -> list[Msg]:
        """Wait for the messages that were lost with a connection; it may break again meanwhile."""
        assert self._consumer is not None
        while self._consumer.gap_possible:
            self._consumer.gap_possible = False
            if not await self._consumer.exists():
                raise SinkRefusedError(
                    f"consumer {self._name!r} of stream {self._stream} was deleted",
                    hint="Start again with a new snapshot: its acknowledgements are lost.",
                )
            # Acknowledgements that nats-py has buffered must arrive before the count is read.
            await self._connection.flush()
            try:
                info = await self._info()
            except SinkUnreachableError:
                info = None
            if info is None:
                self._consumer.gap_possible = True
            else:
                messages = await self._wait_for_redelivery(info, messages)
        return messages

    async def next(self) -> list[StreamMessage]:
        """Some messages. An empty list: no message came until the request expired."""
        if self._consumer is None:
            await self.open()
            assert self._consumer is not None
        delivered, self._redelivered = self._redelivered, []
        delivered = delivered or await self._consumer.next()
        if self._consumer.gap_possible:
            delivered = await self._recover(delivered)
        messages = []
        for message in delivered:
            metadata = message.metadata
            sequence = metadata.sequence.stream
            if sequence in self._acked:
                # The acknowledgement was late or lost: repeat it.
                await self._connection.client.publish(message.reply, b"+ACK")
                continue
            if sequence not in self._unacked:
                receipt = _Receipt(self, sequence)
                messages.append(
                    StreamMessage(sequence, message.data, metadata.num_pending, receipt)
                )
            self._unacked[sequence] = message
        return messages

    async def ack(self, sequence: int) -> None:
        """Acknowledge a message."""
        message = self._unacked.pop(sequence, None)
        if message is not None:
            self._acked[sequence] = None
            if len(self._acked) > _MAX_REMEMBERED:
                self._acked.popitem(last=False)
            await self._connection.client.publish(message.reply, b"+ACK")

    async def nak(self, sequence: int) -> None:
        """Ask for redelivery of a message."""
        message = self._unacked.pop(sequence, None)
        if message is not None:
            await self._connection.client.publish(message.reply, b"-NAK")

    async def close(self) -> None:
        """Reject unacknowledged messages, so that the next reader gets them without a wait."""
        if self._consumer is not None:
            await self._consumer.close()
        unacked = self._unacked | {
            message.metadata.sequence.stream: message for message in self._redelivered
        }
        with contextlib.suppress(nats.errors.Error):
            for sequence in sorted(unacked):
                await self._connection.client.publish(unacked[sequence].reply, b"-NAK")
        await self._connection.flush()


def _count_until(last: int, sequences: Iterable[int]) -> int:
    return sum(sequence <= last for sequence in sequences)


@dataclass(frozen=True, slots=True)
class _Receipt:
    reader: DurableReader
    sequence: int

    async def ack(self) -> None:
        await self.reader.ack(self.sequence)

    async def nak(self) -> None:
        await self.reader.nak(self.sequence)
