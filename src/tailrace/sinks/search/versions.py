"""The version of a document: the position of its change as a positive 64-bit number.

Documents are written with `version_type=external_gte`: the server stores a document with the
version that it is given, and refuses one whose version is lower than the stored one. So a repeated
or delayed request never replaces a newer state, whatever its order. This needs numbers with

    if a change follows another one of the same document, its version is not lower

and as few equal ones as possible. A position is (commit LSN, ordinal), 64 bits and 63 bits; a
version has 63 bits. They fit, because not every position occurs:

    bits 60-62   generation: logs whose positions cannot be compared (`histories`)
    bits  9-59   LSN / 8, for LSNs below 2**54: 16 PiB of WAL
    bits   0-8   ordinal, at most 511

* A commit LSN is where its WAL record begins. Records are aligned to 8 bytes (MAXALIGN), so LSN / 8
  loses nothing: two transactions never share a number, and numbers are ordered as commits are.
* Rows of backfills have LSNs that may lie between records, and are rounded down. For a commit C
  after such an LSN x, the number stays lower: x < C implies x / 8 < C / 8, as C is a multiple of 8.
  For a commit at or before it, x / 8 >= C / 8, and where they are equal the ordinals decide: those
  of backfills count as 511.
* Ordinals from 511 on are equal. Only two changes of one row in one transaction can collide by
  this, and only after its 511th change. Equal versions are not refused: the later one is written,
  and `indexing` never has the two in one request. What remains is a request that is executed after
  its successor, because its answer was lost: for such rows it may restore the earlier state of the
  same transaction.
* A parked message that is delivered again keeps its id, and its version is of the position in
  the id. If the row was changed meanwhile, the newer state stays.

A delete has a version, too. The server remembers it for `index.gc_deletes`, a minute by default.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from tailrace.errors import SinkRefusedError, UnexpectedError
from tailrace.position import READS, RELEASED

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

LAST_ORDINAL = 511
GENERATIONS = 8
_ORDINAL_BITS, _CELL_BITS, _GENERATION_AT = 9, 3, 60
_LSN_LIMIT = 1 << 54
_EVENT_ID = re.compile(rb"([0-9a-f]{16})-([0-9]{1,20})")


def versions_of(rows: pa.RecordBatch, *, generation: int) -> NDArray[np.int64]:
    """The version of each message.

    >>> from tailrace.message import MESSAGES
    >>> import pyarrow as pa
    >>> row = {"destination": b"", "id": b"", "payload": b"", "committed_at": 0, "scope": 0}
    >>> rows = [{**row, "lsn": lsn, "ordinal": n} for lsn, n in ((64, 0), (64, 9), (72, 600))]
    >>> versions_of(pa.RecordBatch.from_pylist(rows, schema=MESSAGES), generation=0).tolist()
    [4096, 4105, 5119]
    """
    lsn, ordinal = _first_places(rows)
    if lsn.max(initial=0) >= _LSN_LIMIT:
        raise SinkRefusedError(
            f"the LSN {int(lsn.max()):#x} is too large for a version",
            hint="Use `mode: append`, which needs no versions.",
        )
    if ((lsn % (1 << _CELL_BITS) != 0) & (ordinal < READS)).any():
        raise UnexpectedError("the LSN of a commit is not a multiple of 8")
    cells = (lsn >> np.uint64(_CELL_BITS)) << np.uint64(_ORDINAL_BITS)
    low = np.minimum(ordinal, np.uint64(LAST_ORDINAL))
    return (cells | low | np.uint64(generation << _GENERATION_AT)).astype(np.int64)


def generation_of(version: int) -> int:
    """The generation that a version belongs to.

    >>> generation_of((3 << 60) + 4096)
    3
    """
    return version >> _GENERATION_AT


def _first_places(rows: pa.RecordBatch) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """LSN and ordinal of each change; of a message that was parked, where it had been first."""
    lsn: NDArray[np.uint64] = rows.column("lsn").to_numpy()
    ordinal: NDArray[np.uint64] = rows.column("ordinal").to_numpy()
    released = np.uint64(READS | RELEASED)
    again = np.flatnonzero((ordinal & released) == released)
    if not len(again):
        return lsn, ordinal
    lsn, ordinal = lsn.copy(), ordinal.copy()
    for row, name in zip(again.tolist(), rows.column("id").take(again).to_pylist(), strict=True):
        match = _EVENT_ID.fullmatch(name)
        if match is not None:
            lsn[row], ordinal[row] = int(match[1], 16), int(match[2])
    return lsn, ordinal
