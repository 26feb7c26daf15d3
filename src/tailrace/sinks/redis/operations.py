"""What messages do to keys in mode `string`: the latest state of each row.

A row has the key `NAME:KEY`. A message sets it, or deletes it if its destination is `DEL NAME`. An
update that changed the key deletes the old one first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.decode import columns
from tailrace.sinks.destination import DELETE
from tailrace.sinks.redis import resp

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace.sinks.redis.resp import Bulks

_DELETE = DELETE.encode()
_COLON = columns.constant(b":")
_EMPTY = columns.constant(b"")


class Operations(NamedTuple):
    """Keys in the order in which they are set or deleted."""

    keys: pa.BinaryArray
    values: pa.BinaryArray
    """Empty where a key is deleted."""
    deletes: NDArray[np.bool_]

    @property
    def plan(self) -> bytes:
        """A letter per key: `s` to set it, `d` to delete it."""
        return np.where(self.deletes, ord("d"), ord("s")).astype(np.uint8).tobytes()

    def commands(self, *, expire_ms: int) -> pa.BinaryArray:
        """Each as a command."""
        expiry = (b"PX", b"%d" % expire_ms) if expire_ms else ()
        sets = resp.row_bulks(b"SET", self.keys, self.values, *expiry)
        deletes = resp.row_bulks(b"DEL", self.keys)
        start = columns.constant(b"*%d\r\n" % (3 + len(expiry)))
        return pc.if_else(
            pa.array(self.deletes),
            resp.join(columns.constant(b"*2\r\n"), deletes),
            resp.join(start, sets),
        )

    def bulks(self) -> tuple[Bulks, Bulks]:
        """Keys and values."""
        return resp.column_bulks(self.keys), resp.column_bulks(self.values)


def operations_of(rows: pa.RecordBatch) -> Operations:
    """The operations of messages that have keys."""
    coded = rows.column("destination").dictionary_encode()
    found = coded.dictionary.to_pylist()
    names = pa.array([each.removeprefix(_DELETE) for each in found], pa.binary())
    name = names.take(coded.indices)
    deleted = np.array([each.startswith(_DELETE) for each in found], np.bool_)
    deletes: NDArray[np.bool_] = deleted[coded.indices.to_numpy()]
    keys = resp.join(name, _COLON, rows.column("key"))
    values = pc.if_else(pa.array(deletes), _EMPTY, rows.column("payload"))
    former = rows.column("former")
    if former.null_count == len(former):
        return Operations(keys, values, deletes)
    changed = columns.valid(former)
    # The old key of a row comes right before its new key.
    order = np.repeat(np.arange(len(changed)), 1 + changed)
    old = np.zeros(len(order), np.bool_)
    old[np.flatnonzero(changed) + np.arange(np.count_nonzero(changed))] = True
    taken, is_old = pa.array(order), pa.array(old)
    old_keys = resp.join(name, _COLON, pc.fill_null(former, b""))
    return Operations(
        pc.if_else(is_old, old_keys.take(taken), keys.take(taken)),
        pc.if_else(is_old, _EMPTY, values.take(taken)),
        old | deletes[order],
    )
