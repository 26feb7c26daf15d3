"""The attributes of messages of SQS and SNS, which take the same entries.

| attribute  | value                                                               |
|------------|---------------------------------------------------------------------|
| `id`       | the id of the message                                               |
| `key`      | its key, if it has one that the service takes as an attribute       |
| `encoding` | `base64` if the payload is not text (`tailrace.sinks.aws.text`)     |
| others     | the `headers` of the pipeline                                       |

A FIFO queue or topic also gets the key as the group, and the id as the deduplication id: it drops a
message with an id that it has accepted within the last five minutes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from tailrace import headers
from tailrace.sinks.aws.text import body_of, group_of, id_of, text_of
from tailrace.sinks.groups import order_keys

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_NAMES_BYTES = 64
"""Of the names and types of all attributes, which count as bytes of the message."""


def entries_of(rows: pa.RecordBatch, *, body: str, fifo: bool) -> list[dict[str, Any]]:
    """The entries of a request, with the row as the id. `body` names the field of the payload."""
    columns = [rows.column(name).to_pylist() for name in ("payload", "id", "key", "scope")]
    columns += [headers.pairs(rows.column("headers")), order_keys(rows).to_pylist()]
    entries = []
    for row, (payload, name, key, scope, added, order) in enumerate(zip(*columns, strict=True)):
        text, encoding = body_of(payload)
        values = {at.decode(): text_of(value) for at, value in added}
        values |= {"id": text_of(name), "key": key and text_of(key), "encoding": encoding}
        entry = {
            "Id": str(row),
            body: text,
            "MessageAttributes": {
                attribute: {"DataType": "String", "StringValue": value}
                for attribute, value in values.items()
                if value
            },
        }
        if fifo:
            entry |= {
                "MessageGroupId": group_of(order, scope),
                "MessageDeduplicationId": id_of(name),
            }
        entries.append(entry)
    return entries


def sizes_of(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Bytes of messages with their attributes."""
    parts = [
        pc.fill_null(pc.binary_length(batch.column(name)), 0).to_numpy()
        for name in ("payload", "id", "key")
    ]
    parts.append(headers.sizes(batch.column("headers"), each=len("String")))
    return np.asarray(np.sum(parts, axis=0, dtype=np.int64)) + _NAMES_BYTES
