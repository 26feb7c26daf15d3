"""The grammar of an entry: what its messages must be for its header to be true.

Decodes every message with the same decoder readers use, so what passes here can be read. Keeps the
schemas in force from entry to entry. For `tailrace log verify` and for tests; the appender trusts
the assembly before it.
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
    """Checks one entry after another; `problems` says what is wrong with each."""

    def __init__(self) -> None:
        self._decoder = Decoder()

    def problems(self, entry: Entry) -> Iterator[str]:
        """What the entry's messages say against its header."""
        try:
            positions = [change.position for change in self._decoder.decode([entry])]
        except MalformedError as error:
            yield str(error)
            return
        try:
            found = _outline(entry)
        except MalformedError as error:
            yield str(error)
            return
        yield from _counts(entry, found, len(positions))
        yield from _order(entry, positions)
        yield from _bounds(entry, found)


@dataclass(slots=True)
class _Outline:
    """An entry's transactions and loose messages."""

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
    """Messages that parse one by one, read as a sequence."""
    found = _Outline()
    lsn = int(entry.first.lsn)
    inside = entry.kind is Kind.FRAGMENT and not entry.begins
    for raw in entry.messages():
        kind = raw[0]
        if kind in _SCHEMAS:
            found.schemas += 1
        elif kind == _BEGIN:
            if inside:
                raise MalformedError("BEGIN inside a transaction")
            inside, lsn = True, _number(raw, 1)
            found.begins += 1
            found.unit(lsn)
            time = int.from_bytes(raw[9:17], "big", signed=True)
            found.latest = time if found.latest is None else max(found.latest, time)
        elif kind == _COMMIT:
            if not inside or _number(raw, 2) != lsn:
                raise MalformedError("COMMIT without its BEGIN")
            inside = False
            found.commits += 1
            found.end_lsn = _number(raw, 10)
        elif kind == _MESSAGE and raw[1] == 0:
            if inside:
                raise MalformedError("a non-transactional message inside a transaction")
            found.unit(max(_number(raw, 2) - 1, 0))
        else:
            found.others += 1
            if not inside:
                raise MalformedError(f"a {chr(kind)} message outside of a transaction")
    if inside != (entry.kind is Kind.FRAGMENT and not entry.ends):
        raise MalformedError("the last transaction is not whole" if inside else "no end is open")
    return found


def _number(raw: memoryview, at: int) -> int:
    return int.from_bytes(raw[at : at + _LSN_BYTES], "big")


def _counts(entry: Entry, found: _Outline, changes: int) -> Iterator[str]:
    claims = {
        "changes": (entry.changes, changes),
        "transactions": (entry.transactions, found.commits),
        "schemas": (entry.schemas, found.schemas),
    }
    for what, (claimed, counted) in claims.items():
        if claimed != counted:
            yield f"the header claims {claimed} {what}, there are {counted}"
    match entry.kind:
        case Kind.SCHEMA:
            if found.units or found.others:
                yield "a SCHEMA entry holds more than schemas"
        case Kind.PROGRESS:
            if len(entry.offsets) > 1:
                yield "a PROGRESS entry holds messages"
        case Kind.FRAGMENT:
            if (found.begins, found.commits) != (entry.begins, entry.ends):
                yield "a fragment's flags do not fit its BEGIN and COMMIT"
        case Kind.TRANSACTIONS:
            if not found.units or not (entry.begins and entry.ends):
                yield "an entry of whole transactions is not"


def _order(entry: Entry, positions: list[Position]) -> Iterator[str]:
    if any(after <= before for before, after in pairwise(positions)):
        yield "positions do not increase"
    if positions and not entry.first <= positions[0] <= positions[-1] <= entry.last:
        yield (
            f"changes {positions[0]} to {positions[-1]} lie outside of "
            f"the header's {entry.first} to {entry.last}"
        )
    if positions and entry.kind is Kind.FRAGMENT and positions[-1] != entry.last:
        yield f"the last change is {positions[-1]}, the header claims {entry.last}"


def _bounds(entry: Entry, found: _Outline) -> Iterator[str]:
    if entry.kind is Kind.TRANSACTIONS and found.units:
        if (found.first_lsn, found.last_lsn) != (entry.first.lsn, entry.last.lsn):
            yield "the header's first and last LSN are not those of the transactions"
    elif found.first_lsn is not None and found.first_lsn != entry.first.lsn:
        yield "a fragment's BEGIN has another LSN than its header"
    if found.end_lsn is not None and found.end_lsn != entry.end_lsn:
        yield f"the last COMMIT ends at {Lsn(found.end_lsn)}, the header claims {entry.end_lsn}"
    if found.latest is not None and found.latest > entry.last_time:
        yield "a transaction is later than the header's last time"
