"""Reading back: the messages after a position that an interrupted attempt has stored.

Two steps. First backwards, in growing strides, to a message that the checkpoint covers: a few
requests, however long the stream is. Then forwards from there, headers only, collecting subject and
id of every message after the checkpoint. Lanes publish concurrently, so the last message alone does
not tell which others are stored: the set of ids does.

A micro-batch starts after the previous one is completely stored, so no message after the checkpoint
precedes one that the checkpoint covers. This holds per pipeline: positions of another one say
nothing. In a stream that several pipelines share, every message names its owner in a header, and
the steps are different:

| the message names   | backwards, to a delivered message      | collected as stored             |
|---------------------|----------------------------------------|---------------------------------|
| this pipeline       | may be the one                         | if it is after the checkpoint   |
| another pipeline    | passed over                            | no                              |
| none: published     | passed over; in a stream that is not   | if it is after the checkpoint:  |
| before it was shared| shared it may be the one               | it may be of this pipeline      |

A single message is then likely to be another pipeline's, so whole ranges are read backwards, each
four times as long as the one before.
"""

from __future__ import annotations

import base64
import itertools
import re
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import SinkUnreachableError
from tailrace.jetstream.protocol import header_value
from tailrace.jetstream.stream import checked
from tailrace.position import Lsn, Position

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tailrace.jetstream.connection import NatsConnection
    from tailrace.jetstream.protocol import Message

    Lsns = NDArray[np.uint64]

_ID = re.compile(rb"([0-9a-f]{1,16})-(?:.*-[A-Za-z]+-)?([0-9]{1,19})", re.DOTALL)
_ID_FIELD = b"Nats-Msg-Id"
_OWNER_FIELD = b"Tailrace-Pipeline"
_API = "$JS.API"
_ALL = ">"
_NO_MESSAGE = 10037
_STRIDE = 256
_PULL = 5000
_MAX_LAG_S, _POLL_S = 10.0, 0.05


def position_of(message_id: bytes) -> Position | None:
    """The position in a message id of either form; None for another id.

    >>> position_of(b"000000000000001a-3"), position_of(b"1a-my-table-insert-3")
    (Position(lsn=Lsn('0/1A'), ordinal=3), Position(lsn=Lsn('0/1A'), ordinal=3))
    """
    match = _ID.fullmatch(message_id)
    return Position(Lsn(int(match[1], 16)), int(match[2])) if match else None


class _Found(NamedTuple):
    """What a range of the stream holds: messages after the checkpoint, as columns in parts."""

    lsns: list[Lsns]
    keys: list[pa.Array]
    delivered: bool
    """Whether it also has a message of the pipeline that the checkpoint covers."""


class ReadBack:
    """The messages after a checkpoint, by subject and id, in order of LSN."""

    def __init__(
        self, lsns: Sequence[int] | Lsns = (), keys: Sequence[bytes] | pa.Array = ()
    ) -> None:
        unsorted = np.asarray(lsns, np.uint64)
        order = np.argsort(unsorted, kind="stable")
        self._lsns = unsorted[order]
        self._keys = _as_array(keys).take(pa.array(order))

    @classmethod
    def joined(cls, found: Sequence[_Found]) -> ReadBack:
        """The messages of several ranges."""
        lsns = [part for each in found for part in each.lsns]
        keys = [part for each in found for part in each.keys]
        return cls(np.concatenate(lsns), pa.concat_arrays(keys)) if keys else cls()

    def beyond(self, after: Position) -> ReadBack:
        """The same without the transactions before that of `after`."""
        low = int(np.searchsorted(self._lsns, np.uint64(after.lsn), side="left"))
        rest = ReadBack()
        rest._lsns, rest._keys = self._lsns[low:], self._keys.slice(low)
        return rest

    def __len__(self) -> int:
        return len(self._lsns)

    def missing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that the stream does not hold."""
        if not len(self) or not batch.num_rows:
            return batch
        bounds = pc.min_max(batch.column("lsn")).as_py()
        low = int(np.searchsorted(self._lsns, np.uint64(bounds["min"]), side="left"))
        high = int(np.searchsorted(self._lsns, np.uint64(bounds["max"]), side="right"))
        if low == high:
            return batch
        keys = pc.binary_join_element_wise(
            batch.column("destination"), batch.column("id"), pa.scalar(b" ", pa.binary())
        ).cast(pa.large_binary())
        stored = pc.is_in(keys, self._keys.slice(low, high - low))
        return batch.filter(pc.invert(stored))


class StreamMessage(NamedTuple):
    """A message of a stream."""

    sequence: int
    subject: str
    id: bytes
    header: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class OwnMessages:
    """Which messages of a stream are a pipeline's own."""

    stream: str
    subjects: str = _ALL
    """A pattern of all subjects that the pipeline publishes to."""
    owner: str = ""
    """The name of the pipeline in its messages."""
    shared: bool = False
    """Whether other pipelines publish to these subjects."""

    @property
    def fields(self) -> bytes:
        r"""The header line of each message that the pipeline publishes.

        >>> OwnMessages("CDC", owner="slot.bridge", shared=True).fields, OwnMessages("CDC").fields
        (b'\r\nTailrace-Pipeline: slot.bridge', b'')
        """
        return b"\r\n%s: %s" % (_OWNER_FIELD, self.owner.encode()) if self.shared else b""

    def mine(self, header: bytes) -> bool:
        """Whether the message is surely the pipeline's own."""
        owner = header_value(header, _OWNER_FIELD)
        return not self.shared if owner is None else owner == self.owner.encode()

    def others(self, header: bytes) -> bool:
        """Whether the message is surely another pipeline's."""
        owner = header_value(header, _OWNER_FIELD)
        return owner is not None and owner != self.owner.encode()


def read_back(
    connection: NatsConnection, own: OwnMessages, bounds: tuple[int, int], *, after: Position
) -> ReadBack:
    """The messages after `after` between two sequences of the stream, both included."""
    first, last = bounds
    if first > last:
        return ReadBack()
    if own.shared:
        return _backward(connection, own, bounds, after)
    start = _last_delivered(connection, own, after, first, last) + 1
    if start > last:
        return ReadBack()
    return ReadBack.joined([_forward(connection, own, (start, last), after)])


def _backward(
    connection: NatsConnection, own: OwnMessages, bounds: tuple[int, int], after: Position
) -> ReadBack:
    """Read ranges backwards until one has a message of the pipeline that is not after `after`."""
    first, last = bounds
    found: list[_Found] = []
    upto, size = last, _STRIDE
    while upto >= first and not (found and found[-1].delivered):
        start = max(first, upto - size + 1)
        found.append(_forward(connection, own, (start, upto), after))
        upto, size = start - 1, size * 4
    return ReadBack.joined(found)


def _last_delivered(
    connection: NatsConnection, own: OwnMessages, after: Position, first: int, last: int
) -> int:
    """The sequence of a message that is not after `after`, or the one before `first`."""
    sequence, stride = last, _STRIDE
    while True:
        # The message at the sequence or the next one: some are deleted or expired.
        message = message_at(connection, own.stream, sequence, own.subjects)
        position = position_of(message.id) if message and own.mine(message.header) else None
        if message and position is not None and position <= after:
            return message.sequence
        if sequence <= first:
            return first - 1
        sequence, stride = max(first, last - stride), stride * 4


def message_at(
    connection: NatsConnection, stream: str, sequence: int, subject: str = _ALL
) -> StreamMessage | None:
    """The first message at or after a sequence."""
    return _message(connection, stream, {"seq": sequence, "next_by_subj": subject})


def last_id(connection: NatsConnection, stream: str, subject: str) -> str | None:
    """The id of a subject's last message; None if it has no message."""
    message = _message(connection, stream, {"last_by_subj": subject})
    return None if message is None else message.id.decode("utf-8", "replace")


def _message(
    connection: NatsConnection, stream: str, body: dict[str, object]
) -> StreamMessage | None:
    answer = connection.request(f"{_API}.STREAM.MSG.GET.{stream}", body)
    if answer.get("error", {}).get("err_code") == _NO_MESSAGE:
        return None
    message = checked(answer, f"read stream {stream}")["message"]
    header = base64.b64decode(message.get("hdrs", ""))
    payload = base64.b64decode(message.get("data", ""))
    message_id = header_value(header, _ID_FIELD) or b""
    return StreamMessage(message["seq"], message["subject"], message_id, header, payload)


def _forward(
    connection: NatsConnection, own: OwnMessages, bounds: tuple[int, int], after: Position
) -> _Found:
    beyond = (int(after.lsn), after.ordinal)
    # Columns take a quarter of the memory of lists. After a lost checkpoint this is a whole stream.
    lsns: list[Lsns] = []
    keys: list[pa.Array] = []
    delivered = False
    messages = _messages(connection, own.stream, *bounds, own.subjects)
    while some := list(itertools.islice(messages, _PULL)):
        found: list[tuple[int, bytes]] = []
        for message in some:
            message_id = header_value(message.header, _ID_FIELD) or b""
            match = _ID.fullmatch(message_id)
            if match is None or own.others(message.header):
                continue
            if (lsn := int(match[1], 16), int(match[2])) > beyond:
                found.append((lsn, message.subject + b" " + message_id))
            elif not delivered:
                delivered = own.mine(message.header)
        lsns.append(np.array([lsn for lsn, _ in found], np.uint64))
        keys.append(pa.array([key for _, key in found], pa.large_binary()))
    return _Found(lsns, keys, delivered)


def _as_array(keys: Sequence[bytes] | pa.Array) -> pa.Array:
    return keys if isinstance(keys, pa.Array) else pa.array(keys, pa.large_binary())


def ids(
    connection: NatsConnection, stream: str, subject: str, bounds: tuple[int, int]
) -> Iterator[bytes]:
    """The ids of a subject's messages between two sequences, both included."""
    if bounds[0] <= bounds[1]:
        for message in _messages(connection, stream, *bounds, subject):
            yield header_value(message.header, _ID_FIELD) or b""


def _messages(
    connection: NatsConnection, stream: str, start: int, last: int, subject: str = _ALL
) -> Iterator[Message]:
    """The messages between two sequences, both included, headers only.

    In a cluster the consumer may run on a replica that lags and does not know the last messages
    yet. The leader answers all other requests, so it decides whether all messages were read.
    """
    consumer = f"tailrace-{secrets.token_hex(6)}"
    config = {
        "name": consumer,
        "description": "Tailrace reads back the messages it has stored.",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": start,
        **({} if subject == _ALL else {"filter_subject": subject}),
        "ack_policy": "none",
        "replay_policy": "instant",
        "headers_only": True,
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": 30 * 10**9,
    }
    checked(
        connection.request(
            f"{_API}.CONSUMER.CREATE.{stream}.{consumer}",
            {"stream_name": stream, "config": config},
        ),
        f"read stream {stream} back",
    )
    seen = start - 1
    deadline = time.monotonic() + _MAX_LAG_S
    while seen < last:
        most = min(_PULL, last - seen)
        pulled = connection.pull(f"{_API}.CONSUMER.MSG.NEXT.{stream}.{consumer}", most)
        if pulled:
            yield from pulled
            seen = sequence_of(pulled[-1].reply)
            deadline = time.monotonic() + _MAX_LAG_S
            continue
        missing = message_at(connection, stream, seen + 1, subject)
        if missing is None or missing.sequence > last:
            # The rest is deleted or expired.
            break
        if time.monotonic() > deadline:
            raise SinkUnreachableError(
                f"stream {stream} cannot be read back: a replica has no message "
                f"{missing.sequence} yet"
            )
        time.sleep(_POLL_S)
    connection.request(f"{_API}.CONSUMER.DELETE.{stream}.{consumer}")


def sequence_of(reply: bytes) -> int:
    """The stream sequence of a delivered message, from its reply subject.

    >>> sequence_of(b"$JS.ACK.CDC.tailrace-1.1.42.7.1700000000000000000.0")
    42
    >>> sequence_of(b"$JS.ACK.hub.HASH.CDC.tailrace-1.1.42.7.1700000000000000000.0.x")
    42
    """
    words = reply.split(b".")
    return int(words[5] if len(words) == 9 else words[7])
