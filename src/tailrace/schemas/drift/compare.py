"""What happened to tables between two looks at the catalogs, as far as no row event tells of it.

How a new file is read, since TRUNCATE, VACUUM FULL, CLUSTER and ALTER TABLE all give a table one:

* TRUNCATE leaves the number of rows unknown, while VACUUM FULL and CLUSTER count, and so does every
  index that is built on a file with rows. An ANALYZE before the next look hides a TRUNCATE.
* ALTER TABLE also replaces the table of large values, if there is one, where the others keep it;
  and it writes the column's catalog row, and its default's, in the same transaction as the table's.
  VACUUM FULL and CLUSTER write no column's row, but for clearing `missing`.

A truncation that the stream has told of is no finding: `Sent` is what it told.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tailrace.schemas.drift.facts import Column, Facts, Leaf, Table

KINDS = {
    "column-retyped": "its values were written anew with another type",
    "column-rewritten": "its values were written anew",
    "column-default": "rows from before the column have its default",
    "column-published": "the column was not published before",
    "row-filter": "the publication's row filter has changed",
    "partition-attached": "its rows joined the table",
    "partition-detached": "its rows left the table",
    "partition-truncated": "its rows are gone",
    "table-truncated": "its rows are gone",
    "table-replaced": "another table has taken its name",
    "table-dropped": "the table is gone",
    "table-renamed": "changes now come under another name",
    "table-left": "changes are not sent any more",
    "table-returned": "what changed while it was not published was not sent",
}
"""The kinds of findings, and what they mean for consumers. They are stable."""

GONE = frozenset({"partition-detached", "partition-truncated", "table-truncated", "table-dropped"})
"""Those by which rows have gone that consumers still have: sending rows again removes none."""

BACKFILLED = frozenset(KINDS) - GONE - {"table-left"}
"""Those for which sending the table's rows again puts consumers right, or nearer to it."""

_TEXTS = frozenset({25, 1043})
_BITS = frozenset({1560, 1562})


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Something of which the stream does not tell. `subject` is a column or a partition.

    `leaves` are the tables that matter, if they hold anything at all.
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
    """What the stream told between two looks: tables truncated, with the transactions that did it,
    and relations stated, by oid."""

    truncated: Mapping[int, frozenset[int]] = field(default_factory=dict)
    stated: frozenset[int] = frozenset()


NOTHING_SENT = Sent()


def compare(before: Facts, after: Facts, sent: Sent = NOTHING_SENT) -> list[Drift]:
    """The findings, table by table."""
    now = after.by_oid()
    names = {(table.namespace, table.name): table for table in after.tables if table.published}
    found: list[Drift] = []
    for old in before.tables:
        new = now.get(old.oid)
        if new is None:
            if old.published:
                found.append(_gone(old, names.get((old.namespace, old.name))))
        elif old.published and new.published:
            found += _changed(old, new, sent)
        elif old.published:
            detail = "" if new.logged else "it is unlogged now"
            found.append(_finding("table-left", new, detail=detail))
        elif new.published:
            detail = "" if old.logged else "it was unlogged"
            found.append(_finding("table-returned", new, detail=detail))
    return found


def _finding(kind: str, table: Table, **more: object) -> Drift:
    return Drift(
        kind=kind,
        oid=table.oid,
        namespace=table.namespace,
        table=table.name,
        **more,  # type: ignore[arg-type]
    )


def _gone(old: Table, heir: Table | None) -> Drift:
    if heir is None:
        return _finding("table-dropped", old)
    return _finding("table-replaced", heir, detail="dropped and created again")


def _changed(old: Table, new: Table, sent: Sent) -> Iterator[Drift]:
    if (old.namespace, old.name) != (new.namespace, new.name):
        yield _finding("table-renamed", new, detail=f"it was {old.qualified}")
    if old.row_filter != new.row_filter:
        detail = f"{old.row_filter or 'none'} → {new.row_filter or 'none'}"
        yield _finding("row-filter", new, detail=detail)
    files = _Files.between(old, new)
    yield from _columns(old, new, files)
    yield from _partitions(old, new, sent)
    for leaf in files.truncated:
        if not _told(leaf, files.truncated, new, sent):
            if leaf.oid == new.oid:
                yield _finding("table-truncated", new)
            else:
                yield _finding("partition-truncated", new, subject=leaf.name)


def _told(leaf: Leaf, truncated: list[Leaf], table: Table, sent: Sent) -> bool:
    """Whether the stream told of a truncation.

    Truncating the root empties all leaves in one transaction; a leaf that was emptied once more by
    itself has another stamp than they have. A subtransaction's stamp is in no BEGIN.
    """
    told = sent.truncated.get(table.oid)
    if told is None or leaf.oid == table.oid:
        return leaf.oid in sent.truncated
    stamps = {each.stamp for each in truncated}
    return leaf.stamp in told if stamps & told else len(stamps) == 1


@dataclass(frozen=True, slots=True)
class _Files:
    """The leaves that got a new file. `altered`: by ALTER TABLE, as far as that can be told."""

    truncated: list[Leaf]
    rewritten: list[Leaf]
    altered: bool

    @classmethod
    def between(cls, old: Table, new: Table) -> _Files:
        were = {leaf.oid: leaf for leaf in old.leaves}
        truncated: list[Leaf] = []
        rewritten: list[Leaf] = []
        altered = False
        for leaf in new.leaves:
            was = were.get(leaf.oid, _as_made(leaf))
            # A move to another tablespace copies the file as it is.
            if was.file == leaf.file or was.tablespace != leaf.tablespace:
                continue
            replaced = bool(was.toast) and was.toast != leaf.toast
            altered = altered or replaced
            (rewritten if replaced or leaf.counted else truncated).append(leaf)
        return cls(truncated, rewritten, altered)


def _as_made(leaf: Leaf) -> Leaf:
    """A new partition as it began: a table's first file has the number of its oid."""
    return replace(leaf, file=leaf.oid) if leaf.attached == leaf.created else leaf


def _columns(old: Table, new: Table, files: _Files) -> Iterator[Drift]:
    were = {column.number: column for column in old.columns}
    # Where rows were written anew, an empty table may have been emptied just before.
    leaves = () if files.rewritten else tuple(leaf.oid for leaf in new.leaves)
    for column in new.columns:
        was = were.get(column.number)
        kind, detail = "", ""
        if was is None and column.number <= old.last_number:
            kind = "column-published"
        elif was is None:
            if column.missing or files.rewritten:
                kind = "column-default"
        elif _differs(was, column) and (files.rewritten or _reads_differently(was, column)):
            kind, detail = "column-retyped", f"{was.type_name} → {column.type_name}"
        elif _rewritten(was, column, files):
            kind = "column-rewritten"
        if kind:
            yield _finding(kind, new, subject=column.name, detail=detail, leaves=leaves)


def _rewritten(was: Column, column: Column, files: _Files) -> bool:
    """Whether ALTER TABLE has written the values of a column anew, its type as it was."""
    if column.stamp == was.stamp or not files.rewritten:
        return False
    if files.altered:
        return True
    if was.missing and not column.missing:
        # VACUUM FULL puts missing values into the rows, and touches no default.
        return column.default != was.default
    return column.stamp in {leaf.stamp for leaf in files.rewritten}


def _differs(was: Column, column: Column) -> bool:
    return (was.kind, was.modifier) != (column.kind, column.modifier)


def _reads_differently(was: Column, column: Column) -> bool:
    """Whether the same bytes are other values to a consumer."""
    kinds = {was.kind, column.kind}
    return len(kinds) > 1 and not (kinds <= _TEXTS or kinds <= _BITS)


def _partitions(old: Table, new: Table, sent: Sent) -> Iterator[Drift]:
    were = {leaf.oid: leaf for leaf in old.leaves}
    are = {leaf.oid: leaf for leaf in new.leaves}
    for oid, leaf in were.items():
        if oid not in are:
            yield _finding("partition-detached", new, subject=leaf.name)
    for oid, leaf in are.items():
        if oid in were or leaf.attached is None:
            continue
        # Made as a partition, it was empty, and its rows are in the stream, which then has stated
        # it. In one transaction with its making, it may have got rows before it was attached.
        if leaf.attached != leaf.created or oid not in sent.stated:
            yield _finding("partition-attached", new, subject=leaf.name, leaves=(oid,))
