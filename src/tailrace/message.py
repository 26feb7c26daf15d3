"""Messages: what pipelines make of changes and sinks take, as columns."""

from __future__ import annotations

import pyarrow as pa

MESSAGES = pa.schema(
    [
        pa.field("destination", pa.binary(), nullable=False),
        pa.field("id", pa.binary(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("lsn", pa.uint64(), nullable=False),
        pa.field("ordinal", pa.uint64(), nullable=False),
        pa.field("committed_at", pa.int64(), nullable=False),
    ]
)
"""A message a row, in order of position. Destinations and ids are UTF-8; `committed_at` counts
microseconds since 1970 UTC. All rows of one transaction (one `lsn`) follow one another."""
