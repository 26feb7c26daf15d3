"""The position of a lane in Redis, and the right to write it.

A hash per pipeline holds for each lane its position (`LanePosition`) and the token of the sink
that owns it. Opening a sink replaces the token: from then on scripts of every earlier sink of that
lane have no effect.

In a cluster a script has the keys of one slot. There every stream has a hash of its own, in the
stream's slot by its hash tag.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import structlog

from tailrace.errors import DivergedError, SinkFencedError, SinkRefusedError, SinkUnreachableError
from tailrace.sinks.ledger import LaneId, LanePosition, Ledger
from tailrace.sinks.redis import resp, scripts

if TYPE_CHECKING:
    from typing import Any

    import pyarrow as pa

    from tailrace.position import Position
    from tailrace.sinks.contract import Lane
    from tailrace.sinks.redis.connection import Connection
    from tailrace.sinks.redis.resp import Bulks

_POSITION = b"position:"
_OTHER_RUN = (
    "The same pipeline runs in another process, or another pipeline has its name and `prefix`. "
    "Stop the other one, then start this one again."
)


class Account:
    """Writes messages together with the position that they reach."""

    def __init__(self, connection: Connection, key: bytes, lane: Lane) -> None:
        self._connection = connection
        self._key = key
        self._lane = LaneId(
            number=lane.number, lanes=lane.lanes, source=lane.history, reset=lane.reset
        )
        self._fields = b"owner:%d" % lane.number, _POSITION + b"%d" % lane.number
        self._token = uuid.uuid4().hex.encode()
        # Before the claim: a pipeline of another history must not take the lane.
        self._read(self._connection.call("HGETALL", key))
        claim = connection.call("EVAL", scripts.CLAIM, 1, key, self._fields[0], self._token)
        self._ledger, self._known = self._read(claim)
        self.repeated = 0
        """Messages that were sent, and that Redis already had."""
        self.skipped = 0
        """Messages that were not sent, because the position includes them."""

    def _read(self, answer: list[bytes]) -> tuple[Ledger, bytes]:
        found = dict(zip(answer[::2], answer[1::2], strict=True))
        stored = {
            int(field.removeprefix(_POSITION)): LanePosition.load(value)
            for field, value in found.items()
            if field.startswith(_POSITION)
        }
        ledger = Ledger(self._lane, stored, system="Redis", guide="docs/guides/redis.md")
        return ledger, found.get(self._fields[1], b"")

    def open(self, after: Position) -> None:
        """Begin a batch after a position."""
        self._ledger.open(after)
        if self._ledger.ahead and self._ledger.stored is not None:
            structlog.get_logger().info(
                "redis.resumed",
                key=self._key.decode("utf-8", "replace"),
                lane=self._lane.number,
                after=str(after),
                stored=str(self._ledger.stored.position),
            )

    def held(self, batch: pa.RecordBatch) -> int:
        """How many of the first rows Redis holds."""
        return self._ledger.held(batch)

    def missing(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that Redis does not hold. Those are sent next."""
        left = self._ledger.missing(rows)
        self.skipped += rows.num_rows - left.num_rows
        return left

    def send(self, script: bytes, keys: Bulks, arguments: Bulks, *, ahead: int) -> None:
        """Write messages with the position that they reach."""
        position = self._ledger.to_commit()
        assert position is not None
        text = position.dump()
        guard = resp.bulks([*self._fields, self._token, self._known, text])
        head = resp.bulks([b"EVAL", script, b"%d" % (1 + keys.values), self._key])
        self._connection.receive(ahead=ahead)
        self._connection.send(resp.request(head, keys, guard, arguments), self._receive)
        # Later scripts compare with it, so they have no effect if this one has none.
        self._ledger.stored, self._known = position, text

    def verify(self) -> None:
        """Fail unless the skipped rows are those that Redis holds."""
        self._ledger.verify()

    def _receive(self, answer: list[Any]) -> None:
        status, *facts = answer
        where, lane = self._connection.where, self._lane.number
        match status:
            case b"stored":
                self.repeated += int(facts[0])
            case b"owner" if not facts[0]:
                raise SinkUnreachableError(
                    f"{where} no longer holds the position of lane {lane}: it was deleted or "
                    "evicted, or Redis has lost data"
                )
            case b"owner" | b"position":
                raise SinkFencedError(f"{where}: lane {lane} has another owner", hint=_OTHER_RUN)
            case b"type":
                raise wrong_type(*facts)
            case b"taken":
                raise _taken(*facts)
            case _:
                raise SinkRefusedError(f"{where}: unexpected answer {status!r}")


def wrong_type(key: bytes, kind: bytes) -> SinkRefusedError:
    """The error for a stream's key that holds something else."""
    return SinkRefusedError(
        f"the key {_shown(key)} holds a {kind.decode()}, not a stream",
        hint="Delete the key, or choose another `name` or `route`.",
    )


def _taken(stream: bytes, entry: bytes) -> DivergedError:
    return DivergedError(
        f"stream {_shown(stream)} does not take entry {entry.decode()}: it has later entries, and "
        "not this one",
        hint="Another pipeline or another history of the database has written to the stream. "
        "Delete the stream, choose another `name`, or set `ids: auto`.",
    )


def _shown(key: bytes) -> str:
    return repr(key[:200].decode("utf-8", "replace"))


def key_of(prefix: str, lane: Lane) -> bytes:
    """The hash of positions of a pipeline."""
    return f"{prefix}:positions:{lane.owner}".encode()


def hash_tag(key: bytes) -> bytes | None:
    """What another key needs in braces to have the same slot; None if nothing does.

    >>> hash_tag(b"orders"), hash_tag(b"cdc:{shop}.orders"), hash_tag(b"a}b")
    (b'orders', b'shop', None)
    """
    _, opened, rest = key.partition(b"{")
    tag, closed, _ = rest.partition(b"}")
    if opened and closed and tag:
        return tag
    return key if key and b"}" not in key else None
