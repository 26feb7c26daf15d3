"""A stream's messages in its order, whatever happens to the line or the server.

`Ordered` keeps its own place: the server's consumer is made again behind the last message whenever
it is gone or a message was lost on the way. `Durable` has its place on the server, by a name and
by acknowledgements.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import nats.errors
import nats.js.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from tailrace.client.connection import LOG, failures, missing_stream, reason
from tailrace.client.pull import Pull
from tailrace.errors import (
    ConfigError,
    PositionLostError,
    SinkError,
    SinkRefusedError,
    SinkUnreachableError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from nats.aio.msg import Msg
    from nats.js.api import ConsumerInfo

    from tailrace.client.change import Receipt
    from tailrace.client.connection import Connection

BATCH = 500
_INACTIVE_S = 300.0
_MOST_PENDING = 10_000
_REMEMBERED = 100_000
_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where to begin: at a sequence, at a time, or at the beginning."""

    sequence: int | None = None
    time: datetime | None = None

    def settings(self) -> dict[str, object]:
        """For a consumer's configuration."""
        if self.sequence is not None:
            return {
                "deliver_policy": DeliverPolicy.BY_START_SEQUENCE,
                "opt_start_seq": self.sequence,
            }
        if self.time is not None:
            return {"deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": self.time}
        return {"deliver_policy": DeliverPolicy.ALL}


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message, its place in the stream, and whom to tell of it."""

    sequence: int
    data: bytes
    pending: int
    """How many more there are for us."""
    receipt: Receipt | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    subject: str = ""


class Reader(Protocol):
    """Messages in their order."""

    async def next(self) -> list[Arrival]:
        """Some messages, or none after a while of silence."""
        ...

    async def close(self) -> None:
        """Leave nothing behind on the server that is of no use any more."""
        ...


class Ordered:
    """All messages of some subjects from a start on, each once."""

    def __init__(
        self, connection: Connection, stream: str, *subjects: str, start: Start, batch: int = BATCH
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._subjects = subjects
        self._start = start
        self._batch = batch
        self._pull: Pull | None = None
        self._last = 0
        self._delivered = 0
        self._mark = 0
        self.silent = False
        """Whether the last look found that there is nothing."""

    @property
    def place(self) -> int:
        """The last message that is read, or known not to be ours."""
        return self._last

    async def open(self) -> None:
        """Make the consumer; says at once what is wrong."""
        start = Start(sequence=self._last + 1) if self._last else self._start
        if start.sequence is not None:
            await self._check(start.sequence)
        settings = ConsumerConfig(
            # One under its own name: servers before 2.10 know no list.
            filter_subject=self._subjects[0] if len(self._subjects) == 1 else None,
            filter_subjects=[*self._subjects] if len(self._subjects) > 1 else None,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=_INACTIVE_S,
            mem_storage=True,
            num_replicas=1,
            **start.settings(),  # type: ignore[arg-type]
        )
        pull = await _pull(self._connection, self._stream, settings, self._batch)
        self._pull, self._delivered = pull, 0

    async def _check(self, sequence: int) -> None:
        """Refuse to go on over messages that the stream has let go of."""
        state = (await self._connection.stream_info(self._stream))["state"]
        if state["first_seq"] > sequence:
            raise PositionLostError(
                f"stream {self._stream} begins at message {state['first_seq']}, and the next one "
                f"to read is {sequence}: changes may be missing",
                hint="Take a new snapshot, and let the stream keep messages for longer.",
            )
        if state["last_seq"] + 1 < sequence:
            raise PositionLostError(
                f"stream {self._stream} ends at message {state['last_seq']}, before {sequence}: "
                "it is not the stream it was",
                hint="Take a new snapshot.",
            )

    async def next(self) -> list[Arrival]:
        """Some messages, or none after a while of silence."""
        if self._pull is None:
            await self._reopen()
            assert self._pull is not None
        messages = await self._pull.next()
        found = self._whole(messages)
        doubtful = self._pull.doubtful or len(found) < len(messages)
        self.silent = not messages and not doubtful
        if doubtful:
            # Nobody acknowledges, so nobody sends again what was lost.
            await self._drop()
        elif self.silent:
            await self._note()
        return found

    def _whole(self, messages: list[Msg]) -> list[Arrival]:
        """The messages up to the first gap."""
        found = []
        for message in messages:
            metadata = message.metadata
            if metadata.sequence.consumer != self._delivered + 1:
                break
            self._delivered += 1
            self._last = metadata.sequence.stream
            found.append(
                Arrival(
                    self._last,
                    message.data,
                    metadata.num_pending,
                    headers=message.headers or {},
                    subject=message.subject,
                )
            )
        return found

    async def _note(self) -> None:
        """Move on over messages that are not for us.

        Silence up to the end of a request means that none of ours is among those that were in the
        stream when it began, and with the replica that our consumer lives with. Without this a
        quiet table's place would fall behind what a busy stream keeps.
        """
        self._last = max(self._last, self._mark)
        with contextlib.suppress(SinkError):
            info = await self._connection.stream_info(self._stream)
            replicas = info.get("cluster", {}).get("replicas") or []
            if all(replica["current"] and not replica.get("lag") for replica in replicas):
                self._mark = int(info["state"]["last_seq"])

    async def _reopen(self) -> None:
        while True:
            try:
                await self.open()
            except SinkUnreachableError as error:
                LOG.warning("waiting for stream %s: %s", self._stream, reason(error))
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    async def _drop(self) -> None:
        pull, self._pull = self._pull, None
        if pull is not None:
            await pull.close()
            with contextlib.suppress(nats.errors.Error, nats.js.errors.Error, TimeoutError):
                if self._connection.client.is_connected:
                    await self._connection.jetstream.delete_consumer(self._stream, pull.consumer)

    async def close(self) -> None:
        """Remove the consumer."""
        await self._drop()


class Durable:
    """Messages under a name, each until it is acknowledged.

    What an earlier process took and did not acknowledge comes first, in its order: the server would
    send it some time later, behind younger messages. One reader at a time may use a name.
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
        self._pull: Pull | None = None
        self._held: dict[int, Msg] = {}
        self._done: OrderedDict[int, None] = OrderedDict()
        self._ready: list[Msg] = []

    async def exists(self) -> bool:
        """Whether the server knows the name."""
        return await self._info() is not None

    async def forget(self) -> None:
        """Let the server forget the name."""
        with (
            failures(f"delete consumer {self._name}"),
            contextlib.suppress(nats.js.errors.NotFoundError),
        ):
            await self._connection.jetstream.delete_consumer(self._stream, self._name)

    async def _info(self) -> ConsumerInfo | None:
        with failures(f"look at consumer {self._name}"):
            try:
                info: ConsumerInfo = await self._connection.jetstream.consumer_info(
                    self._stream, self._name
                )
            except nats.js.errors.NotFoundError:
                return None
        return info

    async def open(self) -> None:
        """Go on under the name, or make it and begin at the start."""
        await self._connection.stream_info(self._stream)
        info = await self._info()
        if info is None:
            settings = ConsumerConfig(
                durable_name=self._name,
                filter_subject=self._subject,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=self._ack_wait_s,
                max_ack_pending=_MOST_PENDING,
                **self._start.settings(),  # type: ignore[arg-type]
            )
            self._pull = await _pull(self._connection, self._stream, settings, BATCH)
            return
        if info.config.filter_subject != self._subject:
            raise ConfigError(
                f"consumer {self._name!r} is for {info.config.filter_subject}, "
                f"not for {self._subject}",
                hint="Use another durable name, one for each table.",
            )
        self._pull = Pull(self._connection, self._stream, self._name, batch=BATCH)
        await self._pull.open()
        self._ready = await self._settled(info, [])

    async def _settled(self, info: ConsumerInfo, messages: list[Msg]) -> list[Msg]:
        """All messages up to the last one delivered that nobody has acknowledged, in order.

        Some were sent to a process or over a line that is gone. The server sends them again after
        a while, and younger ones before them: those wait here.
        """
        assert self._pull is not None
        assert info.delivered is not None
        last, missing = info.delivered.stream_seq, info.num_ack_pending or 0
        found = {message.metadata.sequence.stream: message for message in messages}
        while sum(sequence <= last for sequence in found.keys() | self._held.keys()) < missing:
            more = await self._pull.next()
            found |= {message.metadata.sequence.stream: message for message in more}
            now = None
            with contextlib.suppress(SinkUnreachableError):
                now = None if more else await self._info()
            if now is not None:
                # The stream may have let go of some: they come no more.
                younger = sum(sequence > last for sequence in found)
                missing = min(missing, (now.num_ack_pending or 0) - younger)
        return [found[sequence] for sequence in sorted(found)]

    async def _recovered(self, messages: list[Msg]) -> list[Msg]:
        """The line was cut: wait for what was lost with it. It may be cut meanwhile again."""
        assert self._pull is not None
        while self._pull.doubtful:
            self._pull.doubtful = False
            if not await self._pull.alive():
                raise SinkRefusedError(
                    f"consumer {self._name!r} of stream {self._stream} is gone",
                    hint="Somebody deleted it. Begin again with a new snapshot to have all rows.",
                )
            await self._connection.flush()
            try:
                info = await self._info()
            except SinkUnreachableError:
                info = None
            if info is None:
                self._pull.doubtful = True
            else:
                messages = await self._settled(info, messages)
        return messages

    async def next(self) -> list[Arrival]:
        """Some messages, or none after a while of silence."""
        if self._pull is None:
            await self.open()
            assert self._pull is not None
        messages, self._ready = self._ready, []
        messages = messages or await self._pull.next()
        if self._pull.doubtful:
            messages = await self._recovered(messages)
        found = []
        for message in messages:
            metadata = message.metadata
            sequence = metadata.sequence.stream
            if sequence in self._done:
                # The acknowledgement was late or lost.
                await self._connection.client.publish(message.reply, b"+ACK")
                continue
            if sequence not in self._held:
                receipt = _Ack(self, sequence)
                found.append(Arrival(sequence, message.data, metadata.num_pending, receipt))
            self._held[sequence] = message
        return found

    async def ack(self, sequence: int) -> None:
        """A message is done with."""
        message = self._held.pop(sequence, None)
        if message is not None:
            self._done[sequence] = None
            if len(self._done) > _REMEMBERED:
                self._done.popitem(last=False)
            await self._connection.client.publish(message.reply, b"+ACK")

    async def nak(self, sequence: int) -> None:
        """A message shall come again."""
        message = self._held.pop(sequence, None)
        if message is not None:
            await self._connection.client.publish(message.reply, b"-NAK")

    async def close(self) -> None:
        """Hand back what is not acknowledged, so that the next reader need not wait for it."""
        if self._pull is not None:
            await self._pull.close()
        held = self._held | {each.metadata.sequence.stream: each for each in self._ready}
        with contextlib.suppress(nats.errors.Error):
            for sequence in sorted(held):
                await self._connection.client.publish(held[sequence].reply, b"-NAK")
        await self._connection.flush()


@dataclass(frozen=True, slots=True)
class _Ack:
    reader: Durable
    sequence: int

    async def ack(self) -> None:
        await self.reader.ack(self.sequence)

    async def nak(self) -> None:
        await self.reader.nak(self.sequence)


async def _pull(connection: Connection, stream: str, settings: ConsumerConfig, batch: int) -> Pull:
    with failures(f"read stream {stream}"):
        try:
            info = await connection.jetstream.add_consumer(stream, settings)
        except nats.js.errors.NotFoundError as error:
            raise missing_stream(stream) from error
        pull = Pull(connection, stream, info.name, batch=batch)
        await pull.open()
    return pull
