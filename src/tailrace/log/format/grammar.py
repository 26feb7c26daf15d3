"""The grammar of an entry: whether its messages agree with its header.

Decodes every message with the same decoder as `tailrace tail`, so what passes here can be read.
Keeps the schemas in force from entry to entry. For `tailrace log verify` and for tests; the
appender does not repeat the checks of assembly.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from tailrace.errors import MalformedError
from tailrace.log.changes import Decoder
from tailrace.log.format.entry import Entry, Kind
from tailrace.position import Lsn, Position

if TYPE_CHECKING:
    from collections.abc import Iterator

_LSN_BYTES = 8
_BEGIN, _COMMIT, _MESSAGE = (ord(letter) for letter in "BCM")
_SCHEMAS = frozenset(b"RY")


class Grammar:
    """Checks one entry after another."""

    def __init__(self) -> None:
        self._decoder = Decoder()

    def problems(self, entry: Entry) -> Iterator[str]:
        """The differences between the entry's messages and its header."""
        try:
            positions = [change.position for change in self._decoder.decode([entry])]
        except MalformedError as error:
            yield str(error)
            return
        try:
            outline = _outline(entry)
        except MalformedError as error:
            yield str(error)
            return
        yield from _counts(entry, outline, len(positions))
        yield from _order(entry, positions)
        yield from _bounds(entry, outline)


@dataclass(slots=True)
class _Outline:
    """Counts and bounds of an entry. A unit is a transaction or a non-transactional message."""

    begins: int = 0
    commits: int = 0
    schemas: int = 0
    others: int = 0
    units: int = 0
    first_lsn: int | None = None
    last_lsn: int | None = None
    end_lsn: int | None = None
    latest: int | None = None
    """Commit time of the latest transaction."""

    def unit(self, lsn: int) -> None:
        if self.last_lsn is not None and lsn <= self.last_lsn:
            raise MalformedError(f"commit LSN {Lsn(lsn)} does not follow {Lsn(self.last_lsn)}")
        self.first_lsn = lsn if self.first_lsn is None else self.first_lsn
        self.last_lsn = lsn
        self.units += 1


def _outline(entry: Entry) -> _Outline:
    """Read the messages of an entry as a sequence. Raises MalformedError for a wrong order."""
    outline = _Outline()
    lsn = int(entry.first.lsn)
    inside = entry.kind is Kind.FRAGMENT and not entry.begins
    for raw in entry.messages():
        kind = raw[0]
        if kind in _SCHEMAS:
            outline.schemas += 1
        elif kind == _BEGIN:
            if inside:
                raise MalformedError("BEGIN inside a transaction")
            inside, lsn = True, _number(raw, 1)
            outline.begins += 1
            outline.unit(lsn)
            time = int.from_bytes(raw[9:17], "big", signed=True)
            outline.latest = time if outline.latest is None else max(outline.latest, time)
        elif kind == _COMMIT:
            if not inside or _number(raw, 2) != lsn:
                raise MalformedError("COMMIT without its BEGIN")
            inside = False
            outline.commits += 1
            outline.end_lsn = _number(raw, 10)
        elif kind == _MESSAGE and raw[1] == 0:
            if inside:
                raise MalformedError("a non-transactional message inside a transaction")
            outline.unit(max(_number(raw, 2) - 1, 0))
        else:
            outline.others += 1
            if not inside:
                raise MalformedError(f"a {chr(kind)} message outside of a transaction")
    if inside != (entry.kind is Kind.FRAGMENT and not entry.ends):
        raise MalformedError(
            "the last transaction has no COMMIT"
            if inside
            else "a COMMIT in a fragment that is not the last"
        )
    return outline


def _number(raw: memoryview, at: int) -> int:
    return int.from_bytes(raw[at : at + _LSN_BYTES], "big")


def _counts(entry: Entry, outline: _Outline, changes: int) -> Iterator[str]:
    claims = {
        "changes": (entry.changes, changes),
        "transactions": (entry.transactions, outline.commits),
        "schemas": (entry.schemas, outline.schemas),
    }
    for what, (claimed, counted) in claims.items():
        if claimed != counted:
            yield f"the header claims {claimed} {what}, the body has {counted}"
    match entry.kind:
        case Kind.SCHEMA:
            if outline.units or outline.others:
                yield "a SCHEMA entry holds more than schemas"
        case Kind.PROGRESS:
            if len(entry.offsets) > 1:
                yield "a PROGRESS entry holds messages"
        case Kind.FRAGMENT:
            if (outline.begins, outline.commits) != (entry.begins, entry.ends):
                yield "a fragment's flags differ from its BEGIN and COMMIT"
        case Kind.TRANSACTIONS:
            if not outline.units or not (entry.begins and entry.ends):
                yield "a TRANSACTIONS entry does not hold whole transactions"


def _order(entry: Entry, positions: list[Position]) -> Iterator[str]:
    if any(after <= before for before, after in pairwise(positions)):
        yield "positions do not increase"
    if positions and not entry.first <= positions[0] <= positions[-1] <= entry.last:
        yield (
            f"changes {positions[0]} to {positions[-1]} are outside of "
            f"the header's {entry.first} to {entry.last}"
        )
    if positions and entry.kind is Kind.FRAGMENT and positions[-1] != entry.last:
        yield f"the last change is {positions[-1]}, the header claims {entry.last}"


def _bounds(entry: Entry, outline: _Outline) -> Iterator[str]:
    if entry.kind is Kind.TRANSACTIONS and outline.units:
        if (outline.first_lsn, outline.last_lsn) != (entry.first.lsn, entry.last.lsn):
            yield "the header's first and last LSN are not those of the transactions"
    elif outline.first_lsn is not None and outline.first_lsn != entry.first.lsn:
        yield "a fragment's BEGIN has another LSN than its header"
    if outline.end_lsn is not None and outline.end_lsn != entry.end_lsn:
        yield f"the last COMMIT ends at {Lsn(outline.end_lsn)}, the header claims {entry.end_lsn}"
    if outline.latest is not None and outline.latest > entry.last_time:
        yield "a transaction is later than the header's last time"
