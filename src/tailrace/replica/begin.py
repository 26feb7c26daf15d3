"""Where a leader begins: what a follower has, compared with the leader's log.

A segment of the leader that was begun in a later term than the follower's last entry is where the
two histories may part: a leader of that term wrote it, and whatever the follower has from there on
is of a leader that was deposed.

    leader    ┊ segment 4, term 0 ┊ segment 5, term 1 ┊ segment 6, term 1
    follower  ┊ segment 4, term 0 … more of term 0
                                  ▲ cut here: the last byte that both have
"""

from __future__ import annotations

from itertools import pairwise
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
    return State(
        log_id=log_id, epoch=epoch, mark=mark.encode().hex(), tail_bytes=size, tail_crc=crc
    )


def _tail(store: Store, name: SegmentName, offset: int) -> tuple[int, int]:
    size = min(offset, TAIL_BYTES)
    return size, crc32c(store.read(name.file, offset - size, size))


def _named(store: Store, sequence: int) -> SegmentName:
    for name in list_segments(store):
        if name.sequence == sequence:
            return name
    raise PositionLostError(f"segment {sequence} is not in the log")


def decide(store: Store, *, log_id: str, mark: Mark, state: State) -> Begin:
    """What a follower has to do. `mark` is the leader's durable mark. Raises DivergedError."""
    oldest = list_segments(store)[0]
    end = state.end()
    if end is None:
        return Begin(action="continue", sequence=oldest.sequence)
    if state.log_id != log_id:
        raise DivergedError(
            f"the follower has the log {state.log_id}, not {log_id}",
            hint="Give the follower an empty log folder.",
        )
    if end.sequence < oldest.sequence:
        return Begin(action="reset", sequence=oldest.sequence)
    cut = _last_common(store, end)
    if cut is not None and cut < end.place:
        if cut[0] < oldest.sequence:
            return Begin(action="reset", sequence=oldest.sequence)
        return Begin(action="cut", sequence=cut[0], offset=cut[1])
    if end.place > mark.place:
        raise DivergedError(
            f"the follower's log ends at {end.end_lsn}, after the leader's at {mark.end_lsn}: "
            "the leader has lost changes that were durable",
            hint="Let the follower take over: tailrace takeover. Or restore the leader's log.",
        )
    _check_tail(store, end, state)
    return Begin(action="continue", sequence=end.sequence, offset=end.offset)


def _last_common(store: Store, end: Mark) -> tuple[int, int] | None:
    """The end of the segment before the first one of a later term; None if there is no such."""
    names = list_segments(store)
    for before, name in pairwise(names):
        if name.sequence > end.sequence + 1:
            # The follower ends before: it has nothing of its own after that segment.
            return None
        if _term(store, name) > term_of(end.epoch):
            return before.sequence, store.size(before.file)
    if _term(store, names[0]) > term_of(end.epoch):
        return names[0].sequence - 1, 0
    return None


def _term(store: Store, name: SegmentName) -> int:
    try:
        return term_of(read_header(store, name)[0].epoch)
    except MalformedError as error:
        raise CorruptError(f"{name.file}: {error}", hint=error.hint) from error


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
