"""Messages as Pub/Sub takes them.

| field          | value                                                                          |
|----------------|--------------------------------------------------------------------------------|
| `data`         | the payload, whatever its encoding                                             |
| `ordering_key` | the key; the table of a message without one. Empty without `ordering`          |

| attribute      | value                                                                          |
|----------------|--------------------------------------------------------------------------------|
| `id`           | the id of the message                                                          |
| `key`          | its key, if it has one                                                         |
| `destination`  | its topic, which a subscriber cannot know otherwise                            |
| `position`     | its position: no later message of a lane has a smaller one                     |
| others         | the `headers` of the pipeline                                                  |

Pub/Sub takes ordering keys and attributes of at most 1,024 bytes of UTF-8. What cannot be such a
text is replaced by a digest, so that equal keys stay equal.

The protobuf classes are used directly: the wrappers around them (proto-plus) take several times as
long per message.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
from google.pubsub_v1.types import PublishRequest, PubsubMessage

from tailrace import headers
from tailrace.sinks.groups import order_keys

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_LONGEST = 1024
_OTHER_BYTES = 1024
"""At most, of a request with one message: the topic twice, the position, the names of attributes,
and what protobuf adds."""
_ENTRY_BYTES = 16
"""At most, of what protobuf adds to an attribute."""
_MESSAGE: Any = PubsubMessage.pb()
_REQUEST: Any = PublishRequest.pb()


def text_of(value: bytes) -> str:
    """The value as a text of at most 1,024 bytes, or its digest.

    >>> text_of("žluť 1".encode()), text_of(b"\\xff")
    ('žluť 1', 'df09d795132a032676a7ca47bcc2db61')
    """
    if len(value) <= _LONGEST:
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return _digest(value)


def _digest(value: bytes) -> str:
    return hashlib.blake2s(value, digest_size=16).hexdigest()


def ordering_key(key: bytes | None, scope: int) -> str:
    """The ordering key of a message: its key, or the table of a message without one. Pub/Sub takes
    an empty text for none, so an empty key has a digest.

    >>> ordering_key(b"42", 7), ordering_key(b"", 7), ordering_key(None, 7)
    ('42', '64550d6ffe2c0a01a14aba1eade0200c', 'table-0000000000000007')
    """
    if key is None:
        return f"table-{scope:016x}"
    return text_of(key) or _digest(key)


def request_of(topic: str, rows: pa.RecordBatch, *, ordering: bool) -> Any:
    """A request to publish the messages of one destination, as protobuf has it."""
    names = ("payload", "id", "key", "scope", "lsn", "ordinal")
    destination = rows.column("destination")[0].as_py().decode()
    messages = []
    columns = [rows.column(each).to_pylist() for each in names]
    columns += [headers.pairs(rows.column("headers")), order_keys(rows).to_pylist()]
    for payload, name, key, scope, lsn, ordinal, added, order in zip(*columns, strict=True):
        attributes = {at.decode(): text_of(value) for at, value in added}
        attributes |= {
            "id": text_of(name),
            "destination": destination,
            "position": f"{lsn:016x}-{ordinal}",
        }
        if key is not None:
            attributes["key"] = text_of(key)
        place = ordering_key(order, scope) if ordering else ""
        messages.append(_MESSAGE(data=payload, attributes=attributes, ordering_key=place))
    return _REQUEST(topic=topic, messages=messages)


def sizes_of(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Bytes of messages with their attributes and ordering keys, in a request of their own."""
    payload, name, key, order = (
        pc.fill_null(pc.binary_length(each), 0).to_numpy()
        for each in (*map(batch.column, ("payload", "id", "key")), order_keys(batch))
    )
    texts = sum(np.minimum(each, _LONGEST) for each in (name, key, order))
    added = headers.sizes(batch.column("headers"), each=_ENTRY_BYTES)
    return np.asarray(payload + texts + added + _OTHER_BYTES, np.int64)
