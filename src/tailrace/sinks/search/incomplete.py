"""Updates that lack large values: these are taken from the document as it is.

PostgreSQL does not send a large value that an update did not modify, and a document can only be
written as a whole: a part of it cannot be updated with an external version. So the document is
read, completed and written. A row has one request at a time, so nothing comes between. If another
process has written a newer state, the version is refused.

Shape `row` names the missing columns in the first member, whose name is empty.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from tailrace.errors import SinkUnreachableError
from tailrace.sinks.outcome import Outcome, Verdict
from tailrace.sinks.search.destination import target_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.sinks.search.client import Client

_MARK = b'{"":'
_DECODER = json.JSONDecoder()


def are_incomplete(payloads: pa.BinaryArray) -> NDArray[np.bool_]:
    """Which messages lack values."""
    found: NDArray[np.bool_] = pc.starts_with(payloads, _MARK).to_numpy(zero_copy_only=False)
    return found


def complete(client: Client, rows: pa.RecordBatch) -> list[bytes | Outcome]:
    """The payload of each message with the missing values; or why there is none.

    The values of a row whose key has changed are in the document of the old key. A repeated message
    finds them where the first one has put them.
    """
    places = [
        (target_of(destination).name, [key.decode() for key in (former, own) if key is not None])
        for destination, former, own in zip(
            *(rows.column(name).to_pylist() for name in ("destination", "former", "key")),
            strict=True,
        )
    ]
    wanted = [{"_index": index, "_id": key} for index, keys in places for key in keys]
    found = _documents(client, wanted)
    return [
        _completed(payload, [found.get((index, key)) for key in keys])
        for payload, (index, keys) in zip(rows.column("payload").to_pylist(), places, strict=True)
    ]


def _documents(client: Client, wanted: list[dict[str, str]]) -> dict[tuple[str, str], Any]:
    """The documents that exist, by the index and id that they were asked for."""
    answer = client.ask("POST", "/_mget", {"docs": wanted})
    if answer.status != 200:
        raise client.unexpected(answer, "_mget")
    try:
        # Numbers stay as precise as they are, which the fast parser does not promise.
        docs = json.loads(answer.body)["docs"]
    except (ValueError, KeyError) as error:
        raise SinkUnreachableError("the answer to _mget is invalid") from error
    return {
        (asked["_index"], asked["_id"]): doc["_source"]
        for asked, doc in zip(wanted, docs, strict=True)
        if doc.get("found")
    }


def _completed(payload: bytes, documents: list[Any]) -> bytes | Outcome:
    text = payload.decode()
    names, end = _DECODER.raw_decode(text, len(_MARK))
    for document in documents:
        if document is not None and all(name in document for name in names):
            values = {name: document[name] for name in names}
            members = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
            return (members[:-1] + text[end:]).encode()
    columns = ", ".join(names)
    return Outcome(
        verdict=Verdict.REFUSED,
        code="INCOMPLETE",
        reason=(
            f"it lacks the large columns that the update did not modify ({columns}), and its "
            "document does not have them"
        ),
        hint="Backfill the table: tailrace backfill PIPELINE TABLE; or set REPLICA IDENTITY FULL.",
    )
