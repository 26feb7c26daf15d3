"""Payloads that are too large for the JVM: they pass it in files.

    00000000016B3748-3     the position of the message

The task that reads the log writes such a payload to a file, and sends the message without it. The
task that delivers puts it back, so that the sink can refuse the message and the guard can park it.
A file may be needed until its micro-batch is committed: Spark may repeat either task alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.log.store import LocalStore
from tailrace.pipeline.frames import frame
from tailrace.position import Lsn, Position

_KEY = b"large"
_AT = "payload"


class LargePayloads:
    """The files of a pipeline, in a folder that all its tasks can access."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def remove_up_to(self, position: Position) -> None:
        """Remove the files of what is committed."""
        store = LocalStore(self._folder)
        for name in store.names():
            if _position(name) <= position:
                store.remove(name)

    def take_out(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """The messages without large payloads; metadata says where these are."""
        if messages.nbytes <= frame.MAX_ROW_BYTES:
            return messages
        large = pc.greater(pc.binary_length(messages[_AT]), frame.MAX_ROW_BYTES)
        rows = np.flatnonzero(large.to_numpy(zero_copy_only=False)).tolist()
        if not rows:
            return messages
        store = LocalStore(self._folder, create=True)
        names = {}
        for row in rows:
            lsn, ordinal = (messages[name][row].as_py() for name in ("lsn", "ordinal"))
            names[str(row)] = name = f"{lsn:016X}-{ordinal}"
            store.write_atomic(name, messages[_AT][row].as_buffer())
        place = {"folder": str(self._folder.absolute()), "names": names}
        empty = pa.scalar(b"", pa.binary())
        without = _with_payloads(messages, pc.if_else(large, empty, messages[_AT]))
        return without.replace_schema_metadata({_KEY: orjson.dumps(place)})


def put_back(messages: pa.RecordBatch) -> pa.RecordBatch:
    """The messages with the payloads that were taken out."""
    found = (messages.schema.metadata or {}).get(_KEY)
    if found is None:
        return messages
    place = orjson.loads(found)
    store = LocalStore(Path(place["folder"]))
    payloads = messages[_AT].to_pylist()
    for row, name in place["names"].items():
        payloads[int(row)] = store.read(name, 0, store.size(name))
    return _with_payloads(messages, pa.array(payloads, pa.binary())).replace_schema_metadata(None)


def _with_payloads(messages: pa.RecordBatch, payloads: pa.Array) -> pa.RecordBatch:
    at = messages.schema.get_field_index(_AT)
    return messages.set_column(at, messages.schema.field(at), payloads)


def _position(name: str) -> Position:
    lsn, _, ordinal = name.partition("-")
    return Position(Lsn(int(lsn, 16)), int(ordinal))
