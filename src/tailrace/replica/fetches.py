"""Fetches: a leader sends sealed segments again to a follower that cannot read its own.

Between the frames of the stream, a piece at a time: neither the stream nor heartbeats wait. The
leader reads a segment through before it sends it. Its own copy may be damaged as well, and then it
says so and sends nothing of it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import structlog

from tailrace.errors import CorruptError, MalformedError, PositionLostError, TailraceError
from tailrace.log.sealed import Reading, header_after, index_is_whole
from tailrace.log.segments import Segments
from tailrace.replica.frames import Fetch, Fetched, Type
from tailrace.replica.outgoing import Outgoing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.log.format.segment import SegmentName
    from tailrace.log.store import Store
    from tailrace.replica.connection import Connection
    from tailrace.replica.frames import Buffer

SLICE_BYTES = 1 << 20
"""How much of a segment is read between two frames."""
_MAX_WAITING = 16


class Fetches:
    """What one follower has asked for."""

    def __init__(self, store: Store, connection: Connection, *, compress: bool) -> None:
        self._store = store
        self._connection = connection
        self._compress = compress
        self._asked: deque[int] = deque()
        self._sending: Iterator[None] | None = None
        self._damaged: dict[int, str] = {}
        self._events = structlog.get_logger()

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._asked) or self._sending is not None

    @property
    def damage(self) -> str:
        """What of the leader's own log cannot be read, as far as this follower has asked."""
        return next(iter(self._damaged.values()), "")

    def ask(self, payload: Buffer) -> None:
        """Take a frame FETCH. Raises MalformedError."""
        if len(self._asked) >= _MAX_WAITING:
            raise MalformedError(f"the follower asks for more than {_MAX_WAITING} segments")
        self._asked.append(Fetch.decode(payload).sequence)

    def forget_before(self, oldest: int) -> None:
        """Retention has removed what is older: it is no damage any more."""
        for sequence in [each for each in self._damaged if each < oldest]:
            del self._damaged[sequence]

    def step(self) -> None:
        """Read or send one piece."""
        if self._sending is None and self._asked:
            self._sending = self._send(self._asked.popleft())
        if self._sending is not None:
            try:
                next(self._sending)
            except StopIteration:
                self._sending = None

    def _send(self, sequence: int) -> Iterator[None]:
        try:
            yield from self._pieces(self._sealed(sequence))
        except FileNotFoundError:
            lost = PositionLostError(f"segment {sequence} is no longer in the log")
            self._refuse(sequence, lost)
        except (CorruptError, PositionLostError) as error:
            self._refuse(sequence, error)

    def _sealed(self, sequence: int) -> SegmentName:
        log = Segments(self._store)
        for name in log.segments():
            if name.sequence == sequence < log.durable_end().sequence:
                return name
        raise PositionLostError(f"segment {sequence} is not a sealed segment of the log")

    def _pieces(self, name: SegmentName) -> Iterator[None]:
        yield from Reading(self._store, name, header_after(self._store, name)).slices(SLICE_BYTES)
        size = self._store.size(name.file)
        whole = index_is_whole(self._store, name)
        for data in Outgoing(self._store, name.sequence, 0).segment(name.sequence):
            if whole or not data.index:
                self._connection.send(Type.PIECE, *data.parts(), compress=self._compress)
                yield
        self._connection.say(Type.FETCHED, Fetched(sequence=name.sequence, size=size))
        self._damaged.pop(name.sequence, None)
        self._events.info("replica.segment_sent_again", segment=name.file)

    def _refuse(self, sequence: int, error: TailraceError) -> None:
        refusal = Fetched(sequence=sequence, code=error.code, message=str(error))
        self._connection.say(Type.FETCHED, refusal)
        if isinstance(error, CorruptError) and sequence not in self._damaged:
            self._damaged[sequence] = str(error)
            self._events.error(
                "replica.own_log_damaged", code=error.code, reason=str(error),
                fix="Check the log: tailrace log verify. Where a copy is sound, take over there.",
            )  # fmt: skip
