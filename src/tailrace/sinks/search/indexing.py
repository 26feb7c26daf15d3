"""`Indexing`: requests of a lane, each as one bulk request, or as a few where order demands it.

Items of one bulk request that have the same id are applied in their order. If one of them fails and
a later one is accepted, the earlier state is obsolete: it counts as accepted, and is neither sent
again nor parked. (It would be refused by its version; but the version of a deleted document is
forgotten after a while.) In three cases a request is divided into parts with one message per
document, sent one after another:

* equal versions, as two changes of a row late in a large transaction have (`versions`);
* an update that lacks large values needs the document as the message before it has left it;
* an update that changes a key concerns two documents, of which only one may fail.

A part leaves out messages whose document has a failed message in an earlier part; they are sent
with it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace.decode import columns
from tailrace.message import MESSAGES
from tailrace.sinks.destination import DELETE
from tailrace.sinks.outcome import Outcome, Verdict
from tailrace.sinks.search.answers import RESULTS, outcomes_of
from tailrace.sinks.search.bulk import append_bulk, state_bulk, targets_of
from tailrace.sinks.search.client import NoAnswerError
from tailrace.sinks.search.destination import target_of
from tailrace.sinks.search.incomplete import are_incomplete, complete
from tailrace.sinks.search.versions import LAST_ORDINAL, versions_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from tailrace.sinks.search.bulk import Bulk
    from tailrace.sinks.search.client import Client
    from tailrace.sinks.search.settings import SearchSettings

    Ids = frozenset[tuple[str, bytes | None]]
    """The documents of a message, by index and id."""

_WAITS = Outcome(
    verdict=Verdict.RETRY,
    code="WAITS",
    reason="an earlier change of its document was not accepted",
)


class Indexing:
    """A cluster, as the requests of a lane see it."""

    def __init__(self, client: Client, settings: SearchSettings, *, generation: int) -> None:
        self._client = client
        self._settings = settings
        self._generation = generation

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def send(self, rows: pa.RecordBatch) -> Mapping[int, Outcome]:
        """Send messages. Returns those that were not accepted, and why."""
        if self._settings.mode == "append":
            return self._post(append_bulk(rows, self._settings, generation=self._generation))
        versions = versions_of(rows, generation=self._generation)
        incomplete = are_incomplete(rows.column("payload"))
        if incomplete.any():
            targets = targets_of(rows.column("destination"))
            incomplete &= ~(targets.deletes | targets.truncates)
        moves = rows.column("former").null_count < rows.num_rows
        if moves or incomplete.any() or _may_collide(versions):
            return self._send_in_parts(rows, versions, incomplete)
        failed = self._store(rows, versions)
        return _without_obsolete(rows, failed) if failed else failed

    def _send_in_parts(
        self, rows: pa.RecordBatch, versions: NDArray[np.int64], incomplete: NDArray[np.bool_]
    ) -> dict[int, Outcome]:
        failed: dict[int, Outcome] = {}
        ids = _ids_of(rows)
        failed_ids: set[tuple[str, bytes | None]] = set()
        for part in parts(ids):
            failed |= {row: _WAITS for row in part if ids[row] & failed_ids}
            ready = np.array([row for row in part if row not in failed], np.int64)
            if len(ready):
                found = self._send_part(rows.take(ready), versions[ready], incomplete[ready])
                failed |= {int(ready[row]): outcome for row, outcome in found.items()}
            failed_ids.update(*(ids[row] for row in part if row in failed))
        return failed

    def _send_part(
        self, rows: pa.RecordBatch, versions: NDArray[np.int64], incomplete: NDArray[np.bool_]
    ) -> dict[int, Outcome]:
        """Send messages of different documents."""
        if not incomplete.any():
            return dict(self._store(rows, versions))
        rows, failed = self._completed(rows, incomplete)
        former = rows.column("former")
        moved = incomplete & columns.valid(former)
        # The old document keeps its values until the new one is stored.
        kept = _with(rows, former=columns.blanked(former, ~moved))
        failed |= self._store_others(kept, versions, ~_mask(rows, failed))
        failed |= self._store_others(_deletions(rows), versions, moved & ~_mask(rows, failed))
        return failed

    def _completed(
        self, rows: pa.RecordBatch, incomplete: NDArray[np.bool_]
    ) -> tuple[pa.RecordBatch, dict[int, Outcome]]:
        """The messages with all their values, and those that cannot be completed."""
        payloads, chosen = rows.column("payload").to_pylist(), np.flatnonzero(incomplete)
        failed: dict[int, Outcome] = {}
        found = complete(self._client, rows.take(chosen))
        for row, payload in zip(chosen.tolist(), found, strict=True):
            if isinstance(payload, Outcome):
                failed[row] = payload
            else:
                payloads[row] = payload
        return _with(rows, payload=pa.array(payloads, pa.binary())), failed

    def _store_others(
        self, rows: pa.RecordBatch, versions: NDArray[np.int64], chosen: NDArray[np.bool_]
    ) -> dict[int, Outcome]:
        """Store the chosen messages. Returns those that were not accepted, by their row in all."""
        places = np.flatnonzero(chosen)
        if not len(places):
            return {}
        found = self._store(rows.take(places), versions[places])
        return {int(places[row]): outcome for row, outcome in found.items()}

    def _store(self, rows: pa.RecordBatch, versions: NDArray[np.int64]) -> Mapping[int, Outcome]:
        return self._post(state_bulk(rows, columns.text_of(pa.array(versions))))

    def _post(self, bulk: Bulk) -> Mapping[int, Outcome]:
        if not len(bulk.rows):
            return {}
        try:
            answer = self._client.request("POST", RESULTS, bulk.body)
        except NoAnswerError as error:
            lost = Outcome(verdict=Verdict.RETRY, code="NO_ANSWER", reason=str(error))
            return dict.fromkeys(bulk.rows.tolist(), lost)
        return outcomes_of(answer, bulk, generation=self._generation)


def parts(ids: Sequence[Ids]) -> Iterator[list[int]]:
    """Messages in order, divided where a document has its second one.

    >>> a, b = frozenset({("i", b"a")}), frozenset({("i", b"b")})
    >>> list(parts([a, b, a, a, b]))
    [[0, 1], [2], [3, 4]]
    """
    part: list[int] = []
    seen: set[tuple[str, bytes | None]] = set()
    for row, own in enumerate(ids):
        if own & seen:
            yield part
            part, seen = [], set()
        part.append(row)
        seen |= own
    if part:
        yield part


def _without_obsolete(rows: pa.RecordBatch, failed: Mapping[int, Outcome]) -> Mapping[int, Outcome]:
    """The failed messages without those whose document a later message has written or deleted."""
    ids, accepted = _ids_of(rows), set[tuple[str, bytes | None]]()
    left = dict(failed)
    for row in reversed(range(rows.num_rows)):
        if row not in failed:
            accepted |= ids[row]
        elif ids[row] <= accepted:
            del left[row]
    return left


def _may_collide(versions: NDArray[np.int64]) -> bool:
    late = versions[versions & LAST_ORDINAL == LAST_ORDINAL]
    return len(np.unique(late)) < len(late)


def _ids_of(rows: pa.RecordBatch) -> list[Ids]:
    names = ("destination", "key", "former")
    return [
        frozenset((target_of(destination).name, key) for key in (own, former) if key is not None)
        for destination, own, former in zip(
            *(rows.column(name).to_pylist() for name in names), strict=True
        )
    ]


def _deletions(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The messages as deletions of the documents of their old keys."""
    destinations = [
        DELETE.encode() + target_of(each).name.encode()
        for each in rows.column("destination").to_pylist()
    ]
    nothing = pa.nulls(rows.num_rows, pa.binary())
    return _with(
        rows,
        destination=pa.array(destinations, pa.binary()),
        key=rows.column("former"),
        former=nothing,
    )


def _mask(rows: pa.RecordBatch, chosen: Iterable[int]) -> NDArray[np.bool_]:
    mask = np.zeros(rows.num_rows, np.bool_)
    mask[list(chosen)] = True
    return mask


def _with(rows: pa.RecordBatch, **replaced: pa.Array) -> pa.RecordBatch:
    for name, values in replaced.items():
        at = MESSAGES.get_field_index(name)
        rows = rows.set_column(at, MESSAGES.field(at), values)
    return rows
