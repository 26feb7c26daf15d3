"""Messages as columns: what pipelines encode changes into and sinks deliver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace.position import Lsn, Position

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEADERS = pa.map_(pa.binary(), pa.binary())
"""Names and values of headers (`tailrace.headers`)."""
GROUP = pa.struct([("own", pa.binary()), ("former", pa.binary())])
"""The group of a message, and the one of the row before the change; null without a row."""
MESSAGES = pa.schema(
    [
        pa.field("destination", pa.binary(), nullable=False),
        pa.field("id", pa.binary(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("lsn", pa.uint64(), nullable=False),
        pa.field("ordinal", pa.uint64(), nullable=False),
        pa.field("committed_at", pa.int64(), nullable=False),
        pa.field("scope", pa.uint64(), nullable=False),
        pa.field("former", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("group", GROUP),
    ]
)
"""One message per row, in order of position. Destinations and ids are UTF-8; `committed_at` counts
microseconds since 1970 UTC. The rows of one transaction (one `lsn`) are consecutive.

Messages with the same `scope` and `key` must stay in order. The scope is a hash of the table's
name. `former` is the old key of an update that changed it, which must follow the messages of both
keys. A message without a key must stay in order with all messages of its scope. `headers` are those
that the pipeline's settings add. `group` is there if the settings say what must stay in order
(`tailrace.sinks.groups`)."""

PLACE = np.dtype([("lsn", "<u8"), ("ordinal", "<u8")])
"""A position, as an element of a column."""


def places_of(messages: pa.RecordBatch) -> NDArray[np.void]:
    """The positions of messages as one column."""
    places = np.empty(messages.num_rows, PLACE)
    places["lsn"], places["ordinal"] = messages["lsn"].to_numpy(), messages["ordinal"].to_numpy()
    return places


def rows_up_to(messages: pa.RecordBatch, position: Position) -> int:
    """How many messages, which are in order, are at or before a position."""
    lsn, ordinal = messages["lsn"].to_numpy(), messages["ordinal"].to_numpy()
    same = lsn == np.uint64(position.lsn)
    beyond = (lsn > np.uint64(position.lsn)) | (same & (ordinal > np.uint64(position.ordinal)))
    return len(beyond) - int(np.count_nonzero(beyond))


def last_of(messages: pa.RecordBatch) -> Position:
    """The position of the last message."""
    return Position(Lsn(messages["lsn"][-1].as_py()), messages["ordinal"][-1].as_py())
