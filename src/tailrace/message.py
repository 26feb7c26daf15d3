"""Messages as columns: what pipelines encode changes into and sinks deliver."""

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
"""One message per row, in order of position. Destinations and ids are UTF-8; `committed_at` counts
microseconds since 1970 UTC. The rows of one transaction (one `lsn`) are consecutive."""
