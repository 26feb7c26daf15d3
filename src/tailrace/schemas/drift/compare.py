"""The drift between two reads of the catalogs: what happened to tables without a row event. Pure.

TRUNCATE, VACUUM FULL, CLUSTER and ALTER TABLE all give a table a new file. They differ in what else
they leave in the catalogs:

| command              | row count   | TOAST table | catalog rows of columns and defaults    |
|----------------------|-------------|-------------|-----------------------------------------|
| TRUNCATE             | unknown     | the same    | not written                             |
| VACUUM FULL, CLUSTER | counted     | the same    | written only to clear `missing`         |
| ALTER TABLE with a   | counted by  | replaced    | written in the transaction that wrote   |
| rewrite              | index build |             | the table's row                         |

An ANALYZE before the next read hides a TRUNCATE. A truncation that the stream has shown is not
drift: `Sent` is what it has shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tailrace.schemas.drift.facts import Column, Facts, Leaf, Table

KINDS = {
    "column-retyped": "its values were rewritten with another type",
    "column-rewritten": "its values were rewritten",
    "column-default": "rows from before the column have its default",
    "column-published": "the column was not published before",
    "row-filter": "the publication's row filter has changed",
    "partition-attached": "its rows joined the table",
    "partition-detached": "its rows left the table",
    "partition-truncated": "its rows are removed",
    "table-truncated": "its rows are removed",
    "table-replaced": "another table has its name now",
    "table-dropped": "the table does not exist any more",
    "table-renamed": "changes are sent under another name now",
    "table-left": "changes are not sent any more",
    "table-returned": "changes made while it was not published were not sent",
}
"""The kinds of drift, and what they mean for consumers. The names are stable."""

REMOVING = frozenset(
    {"partition-detached", "partition-truncated", "table-truncated", "table-dropped"}
)
"""Kinds that remove rows which consumers still have. A backfill does not remove any."""

BACKFILLED = frozenset(KINDS) - REMOVING - {"table-left"}
"""Kinds for which sending the table's rows again corrects consumers, or most of their rows."""

_TEXT_OIDS = frozenset({25, 1043})
"""text, varchar"""
_BIT_OIDS = frozenset({1560, 1562})
"""bit, varbit"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A change that the stream does not show. `subject` is a column or a partition.

    `leaves`, if there are any: the drift matters only if one of these tables has rows.
    """

    kind: str
    oid: int
    namespace: str
    table: str
    subject: str = ""
    detail: str = ""
    leaves: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What the stream has shown between two reads, by oid: the truncated tables, with the
    transactions that truncated them, and the relations with a Relation message."""

    truncated: Mapping[int, frozenset[int]] = field(default_factory=dict)
    stated: frozenset[int] = frozenset()


NOTHING_SENT = Sent()


def compare(before: Facts, after: Facts, sent: Sent = NOTHING_SENT) -> list[Drift]:
    """The drift of each table."""
    now = after.by_oid()
    names = {(table.namespace, table.name): table for table in after.tables if table.published}
    drift: list[Drift] = []
    for old in before.tables:
        new = now.get(old.oid)
        if new is None:
            if old.published:
                drift.append(_dropped(old, names.get((old.namespace, old.name))))
        elif old.published and new.published:
            drift += _changed(old, new, sent)
        elif old.published:
            detail = "" if new.logged else "it is unlogged now"
            drift.append(_drift("table-left", new, detail=detail))
        elif new.published:
            detail = "" if old.logged else "it was unlogged"
            drift.append(_drift("table-returned", new, detail=detail))
    return drift


def _drift(
    kind: str, table: Table, *, subject: str = "", detail: str = "", leaves: tuple[int, ...] = ()
) -> Drift:
    return Drift(
        kind=kind,
        oid=table.oid,
        namespace=table.namespace,
        table=table.name,
        subject=subject,
        detail=detail,
        leaves=leaves,
    )


def _dropped(old: Table, successor: Table | None) -> Drift:
    if successor is None:
        return _drift("table-dropped", old)
    return _drift("table-replaced", successor, detail="dropped and created again")


def _changed(old: Table, new: Table, sent: Sent) -> Iterator[Drift]:
    if (old.namespace, old.name) != (new.namespace, new.name):
        yield _drift("table-renamed", new, detail=f"it was {old.qualified}")
    if old.row_filter != new.row_filter:
        detail = f"{old.row_filter or 'none'} → {new.row_filter or 'none'}"
        yield _drift("row-filter", new, detail=detail)
    files = _NewFiles.between(old, new)
    yield from _columns(old, new, files)
    yield from _partitions(old, new, sent)
    for leaf in files.truncated:
        if not _truncation_sent(leaf, files.truncated, new, sent):
            if leaf.oid == new.oid:
                yield _drift("table-truncated", new)
            else:
                yield _drift("partition-truncated", new, subject=leaf.name)


def _truncation_sent(leaf: Leaf, truncated: list[Leaf], table: Table, sent: Sent) -> bool:
    """Whether the stream has shown the truncation of a leaf.

    The stream names the root for a TRUNCATE of the root, and the leaf for one of the leaf where
    leaves are published themselves. The stamp of a leaf is the transaction that emptied it last.
    With the root truncated by transaction 800 in the stream:

    | stamps of leaves | meaning                                                | sent      |
    |------------------|--------------------------------------------------------|-----------|
    | 800, 800         | the root's TRUNCATE emptied both                       | both      |
    | 800, 801         | the second leaf was truncated again by itself          | the first |
    | 805, 805         | a subtransaction of 800 emptied both: it has no BEGIN  | both      |
    | 803, 801         | each was truncated again by itself                     | neither   |
    """
    transactions = sent.truncated.get(table.oid)
    if transactions is None or leaf.oid == table.oid:
        return leaf.oid in sent.truncated
    stamps = {each.stamp for each in truncated}
    if stamps & transactions:
        return leaf.stamp in transactions
    return len(stamps) == 1


@dataclass(frozen=True, slots=True)
class _NewFiles:
    """The leaves with a new file. `altered`: ALTER TABLE has replaced a TOAST table."""

    truncated: list[Leaf]
    rewritten: list[Leaf]
    altered: bool

    @classmethod
    def between(cls, old: Table, new: Table) -> _NewFiles:
        previous = {leaf.oid: leaf for leaf in old.leaves}
        truncated: list[Leaf] = []
        rewritten: list[Leaf] = []
        altered = False
        for leaf in new.leaves:
            was = previous.get(leaf.oid, _at_creation(leaf))
            # A move to another tablespace copies the file unchanged.
            if was.file == leaf.file or was.tablespace != leaf.tablespace:
                continue
            toast_replaced = bool(was.toast) and was.toast != leaf.toast
            altered = altered or toast_replaced
            (rewritten if toast_replaced or leaf.counted else truncated).append(leaf)
        return cls(truncated, rewritten, altered)


def _at_creation(leaf: Leaf) -> Leaf:
    """A new partition as it was created: the first file of a table has the number of its oid."""
    return replace(leaf, file=leaf.oid) if leaf.attached == leaf.created else leaf


def _columns(old: Table, new: Table, files: _NewFiles) -> Iterator[Drift]:
    previous = {column.number: column for column in old.columns}
    # After a rewrite, an empty file does not prove that the table had no rows then.
    leaves = () if files.rewritten else tuple(leaf.oid for leaf in new.leaves)
    for column in new.columns:
        kind, detail = _column(previous.get(column.number), column, old, files)
        if kind:
            yield _drift(kind, new, subject=column.name, detail=detail, leaves=leaves)


def _column(was: Column | None, column: Column, old: Table, files: _NewFiles) -> tuple[str, str]:
    """The kind of a column's drift and its detail; empty if it has none."""
    if was is None:
        if column.number <= old.last_number:
            return "column-published", ""
        return ("column-default", "") if column.missing or files.rewritten else ("", "")
    if _retyped(was, column) and (files.rewritten or _reads_differently(was, column)):
        return "column-retyped", f"{was.type_name} → {column.type_name}"
    return ("column-rewritten", "") if _rewritten(was, column, files) else ("", "")


def _rewritten(was: Column, column: Column, files: _NewFiles) -> bool:
    """Whether ALTER TABLE has rewritten the values of a column without a change of its type."""
    if column.stamp == was.stamp or not files.rewritten:
        return False
    if files.altered:
        return True
    if was.missing and not column.missing:
        # VACUUM FULL writes missing values into the rows, and changes no default.
        return column.default != was.default
    return column.stamp in {leaf.stamp for leaf in files.rewritten}


def _retyped(was: Column, column: Column) -> bool:
    return (was.kind, was.modifier) != (column.kind, column.modifier)


def _reads_differently(was: Column, column: Column) -> bool:
    """Whether the same bytes are other values for a consumer."""
    kinds = {was.kind, column.kind}
    return len(kinds) > 1 and not (kinds <= _TEXT_OIDS or kinds <= _BIT_OIDS)


def _partitions(old: Table, new: Table, sent: Sent) -> Iterator[Drift]:
    previous = {leaf.oid: leaf for leaf in old.leaves}
    present = {leaf.oid: leaf for leaf in new.leaves}
    for oid, leaf in previous.items():
        if oid not in present:
            yield _drift("partition-detached", new, subject=leaf.name)
    for oid, leaf in present.items():
        if oid in previous or leaf.attached is None:
            continue
        # A table created as a partition was empty, and the stream has its rows and its Relation
        # message. One attached in the transaction that created it may have got rows before.
        if leaf.attached != leaf.created or oid not in sent.stated:
            yield _drift("partition-attached", new, subject=leaf.name, leaves=(oid,))
