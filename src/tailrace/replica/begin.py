"""Where a leader begins: what a follower has, compared with the leader's log.

Only one machine ever writes to a segment, and the epoch in its header is that machine's alone. So
two logs agree in the segments whose epochs are equal, as far as both go, and differ from the first
other one on. What a follower has from there on was written by a leader that was deposed, if its
term is lower than the leader's:

    leader    ┊ segment 4, epoch 9 ┊ segment 5, term 1 ┊ segment 6, term 1
    follower  ┊ segment 4, epoch 9 … more of epoch 9 ┊ segment 5, epoch 10
                                   ▲ cut here: the last byte that both have
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from crc32c import crc32c

from tailrace.errors import CorruptError, DivergedError, MalformedError, PositionLostError
from tailrace.log.format.segment import list_segments, read_header
from tailrace.log.term import term_of
from tailrace.replica.frames import Begin, State

if TYPE_CHECKING:
    from tailrace.log.format.mark import Mark
    from tailrace.log.format.segment import SegmentName
    from tailrace.log.store import Store

TAIL_BYTES = 1 << 16
"""How much of the end of a follower's log is compared with the leader's."""


def state_of(store: Store, *, log_id: str, epoch: int, mark: Mark | None) -> State:
    """What a follower says of its log."""
    if mark is None:
        return State(log_id=log_id, epoch=epoch)
    size, crc = _tail(store, _named(store, mark.sequence), mark.offset)
    runs: list[tuple[int, int]] = []
    for name in list_segments(store):
        # A header that cannot be read counts for the segment before it, until it is repaired.
        with contextlib.suppress(CorruptError):
            found = _epoch(store, name)
            if not runs or runs[-1][1] != found:
                runs.append((name.sequence, found))
    return State(
        log_id=log_id, epoch=epoch, mark=mark.encode().hex(), epochs=tuple(runs),
        tail_bytes=size, tail_crc=crc,
    )  # fmt: skip


def _tail(store: Store, name: SegmentName, offset: int) -> tuple[int, int]:
    size = min(offset, TAIL_BYTES)
    return size, crc32c(store.read(name.file, offset - size, size))


def _named(store: Store, sequence: int) -> SegmentName:
    for name in list_segments(store):
        if name.sequence == sequence:
            return name
    raise PositionLostError(f"segment {sequence} is not in the log")


def _epoch(store: Store, name: SegmentName) -> int:
    try:
        return read_header(store, name)[0].epoch
    except MalformedError as error:
        raise CorruptError(f"{name.file}: {error}", hint=error.hint) from error


def decide(store: Store, *, log_id: str, epoch: int, mark: Mark, state: State) -> Begin:
    """What a follower has to do. `epoch` and `mark` are the leader's. Raises DivergedError."""
    names = list_segments(store)
    end = state.end()
    if end is None:
        return Begin(action="continue", sequence=names[0].sequence)
    if state.log_id != log_id:
        raise DivergedError(
            f"the follower has the log {state.log_id}, not {log_id}",
            hint="Give the follower an empty log folder.",
        )
    if end.sequence < names[0].sequence:
        return Begin(action="reset", sequence=names[0].sequence)
    common = _common_end(store, names, mark, state)
    if common == end.place:
        _check_tail(store, end, state)
        return Begin(action="continue", sequence=end.sequence, offset=end.offset)
    if term_of(state.epochs[-1][1]) >= term_of(epoch):
        raise DivergedError(
            f"the follower's log ends at {end.end_lsn} and has what the leader's, which ends at "
            f"{mark.end_lsn}, has not: the leader has lost changes that were durable",
            hint="Let the follower take over: tailrace takeover. Or restore the leader's log.",
        )
    return Begin(action="cut", sequence=common[0], offset=common[1])


def _common_end(
    store: Store, names: list[SegmentName], mark: Mark, state: State
) -> tuple[int, int]:
    """The end of the follower's log, or where to cut it: the last byte that both logs have."""
    end = state.end()
    assert end is not None
    for name in reversed(names):
        if name.sequence > min(end.sequence, mark.sequence):
            continue
        if _epoch(store, name) == state.epoch_of(name.sequence):
            last = name.sequence == mark.sequence
            limit = mark.offset if last else store.size(name.file)
            return min(end.place, (name.sequence, limit))
    return state.epochs[0][0], 0


def _check_tail(store: Store, end: Mark, state: State) -> None:
    """The last bytes of the follower must be those of the leader at the same place."""
    if not 0 <= state.tail_bytes <= min(end.offset, TAIL_BYTES):
        raise MalformedError("a frame STATE claims an impossible tail")
    name = _named(store, end.sequence)
    tail = store.read(name.file, end.offset - state.tail_bytes, state.tail_bytes)
    if len(tail) != state.tail_bytes or crc32c(tail) != state.tail_crc:
        raise DivergedError(
            f"the follower's log differs from the leader's before {end.end_lsn}",
            hint="Give the follower an empty log folder; it starts over.",
        )
