"""What a stream holds beyond a position: the messages of an attempt that was cut off.

Found in two steps. Backwards, in growing strides, until a message of ours that the checkpoint
knows; a few requests however long the stream. Forwards from there, headers only, keeping subject
and id of everything beyond the checkpoint. Lanes write side by side, so the last message says
nothing about the others: the set is the truth.

A micro-batch begins after the one before it is whole in the stream, so nothing beyond the
checkpoint stands before something the checkpoint knows. That holds for one pipeline; it is why a
stream belongs to one, or its subjects do.
"""

from __future__ import annotations

import base64
import re
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import SinkUnreachableError
from tailrace.jetstream.protocol import header_value
from tailrace.jetstream.stream import checked
from tailrace.position import Lsn, Position

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from tailrace.jetstream.line import Line
    from tailrace.jetstream.protocol import Message

_ID = re.compile(rb"([0-9a-f]{1,16})-(?:.*-[A-Za-z]+-)?([0-9]{1,19})", re.DOTALL)
_ID_FIELD = b"Nats-Msg-Id"
_API = "$JS.API"
_ALL = ">"
_NO_MESSAGE = 10037
_STRIDE = 256
_PULL = 5000
_PATIENCE_S, _LOOK_S = 10.0, 0.05


def position_of(message_id: bytes) -> Position | None:
    """The position in an id, of either form; None if it is none of ours.

    >>> position_of(b"000000000000001a-3"), position_of(b"1a-my-table-insert-3")
    (Position(lsn=Lsn('0/1A'), ordinal=3), Position(lsn=Lsn('0/1A'), ordinal=3))
    """
    match = _ID.fullmatch(message_id)
    return Position(Lsn(int(match[1], 16)), int(match[2])) if match else None


class ReadBack:
    """Messages beyond the checkpoint, by subject and id, in order of LSN."""

    def __init__(self, lsns: Sequence[int] = (), keys: Sequence[bytes] = ()) -> None:
        unsorted = np.array(lsns, np.uint64)
        order = np.argsort(unsorted, kind="stable")
        self._lsns = unsorted[order]
        self._keys = pa.array(keys, pa.binary()).take(pa.array(order))

    def beyond(self, after: Position) -> ReadBack:
        """Without the transactions before that of `after`."""
        low = int(np.searchsorted(self._lsns, np.uint64(after.lsn), side="left"))
        kept = ReadBack()
        kept._lsns, kept._keys = self._lsns[low:], self._keys.slice(low)
        return kept

    def __len__(self) -> int:
        return len(self._lsns)

    def missing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows the stream does not hold."""
        if not len(self) or not batch.num_rows:
            return batch
        bounds = pc.min_max(batch.column("lsn")).as_py()
        low = int(np.searchsorted(self._lsns, np.uint64(bounds["min"]), side="left"))
        high = int(np.searchsorted(self._lsns, np.uint64(bounds["max"]), side="right"))
        if low == high:
            return batch
        keys = pc.binary_join_element_wise(
            batch.column("destination"), batch.column("id"), pa.scalar(b" ", pa.binary())
        )
        held = pc.is_in(keys, self._keys.slice(low, high - low))
        return batch.filter(pc.invert(held))


@dataclass(frozen=True, slots=True)
class Place:
    """A pipeline's messages in a stream: the subjects that no other writes to."""

    stream: str
    subjects: str = _ALL


def read_back(line: Line, place: Place, state: dict[str, Any], *, after: Position) -> ReadBack:
    """What the stream holds beyond `after`."""
    first, last = int(state["first_seq"]), int(state["last_seq"])
    if not state["messages"]:
        return ReadBack()
    start = _last_delivered(line, place, after, first, last) + 1
    return _forward(line, place, (start, last), after) if start <= last else ReadBack()


def _last_delivered(line: Line, place: Place, after: Position, first: int, last: int) -> int:
    """The sequence of a message of ours that is not beyond `after`, or the one before `first`."""
    sequence, stride = last, _STRIDE
    while True:
        # The message there or the next one: some are deleted, some have outlived their age.
        found = message_at(line, place.stream, sequence, place.subjects)
        position = position_of(found[2]) if found else None
        if position is not None and position <= after:
            assert found is not None
            return found[0]
        if sequence <= first:
            return first - 1
        sequence, stride = max(first, last - stride), stride * 4


def message_at(
    line: Line, stream: str, sequence: int, subject: str = _ALL
) -> tuple[int, str, bytes, bytes] | None:
    """Sequence, subject, id and payload of the first message at or behind a sequence."""
    return _message(line, stream, {"seq": sequence, "next_by_subj": subject})


def last_id(line: Line, stream: str, subject: str) -> str | None:
    """The id of a subject's last message; None when there is no message."""
    found = _message(line, stream, {"last_by_subj": subject})
    return None if found is None else found[2].decode("utf-8", "replace")


def _message(
    line: Line, stream: str, body: dict[str, object]
) -> tuple[int, str, bytes, bytes] | None:
    answer = line.ask(f"{_API}.STREAM.MSG.GET.{stream}", body)
    if answer.get("error", {}).get("err_code") == _NO_MESSAGE:
        return None
    message = checked(answer, f"read stream {stream}")["message"]
    header = base64.b64decode(message.get("hdrs", ""))
    payload = base64.b64decode(message.get("data", ""))
    return message["seq"], message["subject"], header_value(header, _ID_FIELD) or b"", payload


def _forward(line: Line, place: Place, bounds: tuple[int, int], after: Position) -> ReadBack:
    beyond = (int(after.lsn), after.ordinal)
    lsns: list[int] = []
    keys: list[bytes] = []
    for message in _messages(line, place.stream, *bounds, place.subjects):
        message_id = header_value(message.header, _ID_FIELD) or b""
        match = _ID.fullmatch(message_id)
        if match and (lsn := int(match[1], 16), int(match[2])) > beyond:
            lsns.append(lsn)
            keys.append(message.subject + b" " + message_id)
    return ReadBack(lsns, keys)


def ids(line: Line, stream: str, subject: str, bounds: tuple[int, int]) -> Iterator[bytes]:
    """The ids of a subject's messages from one sequence up to another."""
    if bounds[0] <= bounds[1]:
        for message in _messages(line, stream, *bounds, subject):
            yield header_value(message.header, _ID_FIELD) or b""


def _messages(
    line: Line, stream: str, start: int, last: int, subject: str = _ALL
) -> Iterator[Message]:
    """From one sequence up to another, headers only.

    In a cluster the consumer may live with a replica that is behind, and knows of no more messages
    than that one has: the leader, which answers all other requests, decides whether that is all.
    """
    consumer = f"tailrace-{secrets.token_hex(6)}"
    config = {
        "name": consumer,
        "description": "Tailrace reads back what it has stored.",
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
        line.ask(
            f"{_API}.CONSUMER.CREATE.{stream}.{consumer}",
            {"stream_name": stream, "config": config},
        ),
        f"read stream {stream} back",
    )
    seen = start - 1
    deadline = time.monotonic() + _PATIENCE_S
    while seen < last:
        pulled = line.pull(f"{_API}.CONSUMER.MSG.NEXT.{stream}.{consumer}", _PULL)
        if pulled:
            yield from pulled
            seen = sequence_of(pulled[-1].reply)
            deadline = time.monotonic() + _PATIENCE_S
        elif (found := message_at(line, stream, seen + 1, subject)) is None or found[0] > last:
            # Deleted, or too old.
            break
        elif time.monotonic() > deadline:
            raise SinkUnreachableError(
                f"stream {stream} can not be read back: a replica has no message {found[0]} yet"
            )
        else:
            time.sleep(_LOOK_S)
    line.ask(f"{_API}.CONSUMER.DELETE.{stream}.{consumer}")


def sequence_of(reply: bytes) -> int:
    """A delivered message's place in its stream, from the subject to acknowledge it at.

    >>> sequence_of(b"$JS.ACK.CDC.tailrace-1.1.42.7.1700000000000000000.0")
    42
    >>> sequence_of(b"$JS.ACK.hub.HASH.CDC.tailrace-1.1.42.7.1700000000000000000.0.x")
    42
    """
    words = reply.split(b".")
    return int(words[5] if len(words) == 9 else words[7])
