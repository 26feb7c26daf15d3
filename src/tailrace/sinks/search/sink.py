"""`Search`: the sink. A message counts once its item of a bulk request has a result.

With `mode: documents` a repeated message changes nothing: its document has its version, or a higher
one. With `mode: append` the id of the message is that of its document, which is created once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from tailrace.decode import columns
from tailrace.errors import PoisonedError
from tailrace.sinks.requests.sink import RequestSink
from tailrace.sinks.search.bulk import targets_of
from tailrace.sinks.search.client import Client
from tailrace.sinks.search.destination import is_index, target_of
from tailrace.sinks.search.histories import find_generation
from tailrace.sinks.search.indexing import Indexing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.sinks.contract import Lane
    from tailrace.sinks.outcome import Outcome
    from tailrace.sinks.search.settings import SearchSettings

    Refused = Iterator[tuple[NDArray[np.bool_], PoisonedError]]
    """Rows, and why they are refused."""

_LONGEST_ID = 512


class Search(RequestSink[Indexing]):
    """Delivers the messages of a lane as documents."""

    def __init__(self, settings: SearchSettings, lane: Lane) -> None:
        super().__init__(settings, lane)
        self._settings = settings

    def connect(self) -> Indexing:
        """Connect, and learn the generation of the documents."""
        client = Client(self._settings)
        try:
            generation = find_generation(client, self._settings.histories, self._lane)
        except BaseException:
            client.close()
            raise
        return Indexing(client, self._settings, generation=generation)

    def send(self, connection: Indexing, rows: pa.RecordBatch) -> Mapping[int, Outcome]:
        """One bulk request, or a few."""
        return connection.send(rows)

    def flaws(self, batch: pa.RecordBatch) -> Mapping[int, PoisonedError]:
        """The rows that no index can store."""
        if not batch.num_rows:
            return {}
        found: dict[int, PoisonedError] = {}
        for rows, error in self._refused(batch):
            found.update(dict.fromkeys(np.flatnonzero(rows).tolist(), error))
        return found

    def _refused(self, batch: pa.RecordBatch) -> Refused:
        payloads, documents = batch.column("payload"), self._settings.mode == "documents"
        if documents:
            yield from self._without_id(batch)
        if documents or self._settings.payload == "json":
            is_object = _mask(pc.starts_with(payloads, b"{"))
            yield ~is_object, PoisonedError("its payload is not a JSON object")
        yield from self._without_index(batch.column("destination"), documents=documents)
        limit = self._settings.max_message_bytes
        sizes = pc.binary_length(payloads).to_numpy()
        for size in np.unique(sizes[sizes > limit]).tolist():
            error = PoisonedError(
                f"it has {size} bytes, max_message_bytes is {limit}",
                hint="Raise max_message_bytes, or exclude large columns.",
            )
            yield sizes == size, error

    def _without_id(self, batch: pa.RecordBatch) -> Refused:
        key, former = batch.column("key"), batch.column("former")
        truncates = targets_of(batch.column("destination")).truncates
        if self._settings.truncate == "refuse":
            yield (
                truncates,
                PoisonedError(
                    "it is a TRUNCATE, and documents are deleted one by one",
                    hint="Set `truncate: ignore`, or where: op <> 'truncate'; delete the documents "
                    "yourself.",
                ),
            )
        yield (
            ~columns.valid(key) & ~truncates,
            PoisonedError(
                "it has no key, so its document has no id",
                hint="Set `key` of the pipeline, or give the table a primary key.",
            ),
        )
        for values in (key, former):
            lengths = pc.fill_null(pc.binary_length(values), 1).to_numpy()
            fits = (lengths > 0) & (lengths <= _LONGEST_ID)
            if not columns.is_utf8(values):
                fits &= columns.utf8_mask(values)
            yield (
                ~fits,
                PoisonedError(
                    f"its key cannot be an id: it must have 1 to {_LONGEST_ID} bytes of UTF-8",
                    hint="Set `key` of the pipeline to a shorter expression.",
                ),
            )

    def _without_index(self, destinations: pa.BinaryArray, *, documents: bool) -> Refused:
        for each in pc.unique(destinations).to_pylist():
            name = target_of(each).name if documents else each.decode("utf-8", "replace")
            if not is_index(name):
                error = PoisonedError(
                    f"its destination {name[:200]!r} is not the name of an index",
                    hint="Correct `route`: no capital letters, no blanks, and no `-`, `_` or `+` "
                    "at the start.",
                )
                yield _mask(pc.equal(destinations, columns.constant(each))), error


def _mask(rows: pa.BooleanArray) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = rows.to_numpy(zero_copy_only=False)
    return found
