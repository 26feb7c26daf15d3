"""Schema documents: what a table looks like, and from which change on. Pure.

A document comes from a Relation message of the log, which precedes the first change that has its
columns, or from the catalog, for what the stream does not show: defaults, NOT NULL, and tables and
columns without changes so far. Either way it applies from a position on.

Documents of a table may be written in another order than they apply in. `document_at` is the rule
by which readers find the document of a change; `additions` computes what to write so that the rule
gives the right document.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailrace.position import ORIGIN, Lsn, Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tailrace.postgres.names import TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What a table looks like, without the position from which it applies."""

    table: TableName
    relation_id: int
    columns: tuple[dict[str, Any], ...]
    key: tuple[str, ...]
    """The columns of the key, in the order of its index; empty for a table without a key."""

    def fields(
        self, *, timestamp: int, version: int, position: Position, log_id: str
    ) -> dict[str, Any]:
        """The content of the stored document. Without a log there is no id of it."""
        fields: dict[str, Any] = {
            "table": self.table.name,
            "schema": str(self.table),
            "timestamp": timestamp,
            "columns": list(self.columns),
            "key": list(self.key),
            "version": version,
            "lsn": str(position.lsn),
            "ordinal": position.ordinal,
            "relation_id": self.relation_id,
        }
        return fields | {"log_id": log_id} if log_id else fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A document, and the position from which it applies.

    `names_and_types_only`: it comes from a Relation message, which has no defaults nor NOT NULL.
    """

    document: Document
    position: Position
    names_and_types_only: bool = False

    def agrees(self, stored: Mapping[str, Any]) -> bool:
        """Whether a stored document describes the same table, whatever its position."""
        if stored.get("relation_id") != self.document.relation_id:
            return False
        columns, key = stored.get("columns"), stored.get("key")
        if key is None or sorted(key) != sorted(self.document.key):
            return False
        if not self.names_and_types_only:
            return columns == list(self.document.columns)
        return isinstance(columns, list) and _names_and_types(columns) == _names_and_types(
            self.document.columns
        )


def _names_and_types(columns: Iterable[Mapping[str, Any]]) -> list[tuple[Any, Any]]:
    return [(column.get("name"), column.get("data_type")) for column in columns]


def position_of(stored: Mapping[str, Any]) -> Position:
    """The position from which a stored document applies; ORIGIN for those of older releases."""
    try:
        return Position(Lsn.parse(str(stored["lsn"])), int(stored["ordinal"]))
    except (KeyError, TypeError, ValueError):
        return ORIGIN


def document_at(stored: Sequence[Mapping[str, Any]], at: Position) -> Mapping[str, Any] | None:
    """The document for a change: the last one that applies from there or before, else the first.

    "Last" is by position; of several with the same position, the one written last.
    """
    places = [(position_of(document), index) for index, document in enumerate(stored)]
    before = [place for place in places if place[0] <= at]
    if before:
        return stored[max(before)[1]]
    return stored[min(places)[1]] if places else None


def own_documents(stored: Sequence[dict[str, Any]], log_id: str) -> list[dict[str, Any]]:
    """The documents whose positions are of a log, or were written before there was one.

    After a restore, positions and OIDs are used again: a document of another log says nothing about
    the changes of this one, though its position may be the greatest.
    """
    return [document for document in stored if document.get("log_id", log_id) == log_id]


def additions(
    stored: Sequence[dict[str, Any]], claims: Iterable[Claim], *, timestamp: int, log_id: str = ""
) -> list[dict[str, Any]]:
    """The documents to write after those stored, so that `document_at` agrees with every claim.

    Empty if it does already, so claims may be repeated. The document written last is always that
    of the last position: readers take it for the present table. Documents of other logs count for
    the version only.

        stored                 claims          additions
        (none)                 5: a            5: a
        5: a                   9: a            (none)
        5: a, 30: abc          10: ab          10: ab, then 30: abc again as the last one
    """
    own, claimed = own_documents(stored, log_id), list(claims)
    documents = [*own]
    # `document_at` falls back to the first document. A document written for one claim can be older
    # than that, and change the fallback of another claim: repeat until nothing is added.
    for _ in claimed:
        before = len(documents)
        for claim in claimed:
            current = document_at(documents, claim.position)
            if current is None or not claim.agrees(current):
                documents.append(
                    claim.document.fields(
                        timestamp=timestamp,
                        version=_next_version([*stored, *documents]),
                        position=claim.position,
                        log_id=log_id,
                    )
                )
        if len(documents) == before:
            break
    if len(documents) > len(own):
        _, last = max((position_of(document), at) for at, document in enumerate(documents))
        if not _same_table(documents[last], documents[-1]):
            version = _next_version([*stored, *documents])
            documents.append(documents[last] | {"timestamp": timestamp, "version": version})
    return documents[len(own) :]


def _next_version(documents: Iterable[Mapping[str, Any]]) -> int:
    versions = [document.get("version") for document in documents]
    return max((version for version in versions if isinstance(version, int)), default=0) + 1


def _same_table(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(one.get(name) == other.get(name) for name in ("columns", "key", "relation_id"))
