"""The truncations and relations that the stream has shown after a position, from the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailrace.errors import TailraceError
from tailrace.log.format.entry import Kind
from tailrace.log.reader import Log
from tailrace.log.store import LocalStore
from tailrace.position import Position
from tailrace.schemas.drift.compare import NOTHING_SENT, Sent
from tailrace.wire import pgoutput

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tailrace.log.format.entry import Entry
    from tailrace.log.format.mark import Mark

_TRUNCATE, _RELATION, _BEGIN = (ord(letter) for letter in "TRB")


def log_end(folder: Path) -> Mark | None:
    """The end of the log; None if there is no log yet."""
    try:
        return Log(LocalStore(folder)).end()
    except (TailraceError, OSError):
        return None


def read_sent(folder: Path, after: str) -> Sent:
    """What the log holds after a position; NOTHING_SENT if it does not reach back so far.

    This reads the bodies of entries, so the watcher calls it only if there is drift to explain.
    """
    truncated: dict[int, frozenset[int]] = {}
    stated: set[int] = set()
    try:
        log = Log(LocalStore(folder))
        for entry in log.read(Position.parse(after)):
            if entry.kind is Kind.SCHEMA:
                continue
            kinds = np.frombuffer(entry.body, np.uint8)[entry.offsets[:-1]]
            for index in np.flatnonzero((kinds == _TRUNCATE) | (kinds == _RELATION)):
                message = pgoutput.parse(
                    entry.body[entry.offsets[index] : entry.offsets[index + 1]]
                )
                if isinstance(message, pgoutput.Truncate):
                    xid = _xid(entry, kinds, int(index))
                    for oid in message.oids:
                        truncated[oid] = truncated.get(oid, frozenset()) | {xid}
                elif isinstance(message, pgoutput.Relation):
                    stated.add(message.oid)
    except (TailraceError, OSError, ValueError):
        return NOTHING_SENT
    return Sent(truncated=truncated, stated=frozenset(stated))


def _xid(entry: Entry, kinds: NDArray[np.uint8], index: int) -> int:
    """The transaction of a message: that of the last BEGIN before it."""
    if entry.kind is Kind.FRAGMENT:
        return entry.xid
    begin = np.flatnonzero(kinds[:index] == _BEGIN)[-1]
    message = pgoutput.parse(entry.body[entry.offsets[begin] : entry.offsets[begin + 1]])
    assert isinstance(message, pgoutput.Begin)
    return message.xid
