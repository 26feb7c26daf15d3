"""What the names of an expression stand for, in Spark SQL over the cells frame.

`Row` is for `where`, `route` and `key`: one change with its old and new row. `Image` is for
`select`: one of the two rows by itself. `Message` is for logical messages, which have no row.
`Typed` is for Spark's analyser: columns of the right types under the names the user knows.

Reading a value that PostgreSQL did not send stops the query: an unchanged value that the old row
does not hold either, or a value outside of the old key. It never looks like NULL.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, NoReturn

from tailrace.pipeline.expressions import cells, sql

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.pipeline.expressions.render import Reference
    from tailrace.pipeline.expressions.syntax import Text
    from tailrace.schema import Column, Relation

FRAME = {
    **{name: sql.name(name) for name in ("op", "schema", "table", "lsn", "ordinal", "xid")},
    **{name: sql.name(name) for name in ("committed_at", "annotations")},
    "_id": sql.EVENT_ID,
}
"""The columns of the frame that expressions see. `_id` is the event id."""

FRAME_TYPES = {
    **dict.fromkeys(("op", "schema", "table", "annotations", "_id"), "STRING"),
    **dict.fromkeys(("lsn", "ordinal", "xid"), "BIGINT"),
    "committed_at": "TIMESTAMP",
}
"""Their Spark types."""


class _Table:
    """The columns of one relation, found by name."""

    def __init__(self, text: Text, relation: Relation) -> None:
        self._text = text
        self.relation = relation

    def place(self, index: int) -> str:
        """The column's full name, for messages."""
        return f"{self.relation.qualified_name}.{self.relation.columns[index].name}"

    def column(self, reference: Reference) -> int | None:
        """The column's index; None for a column of the frame. A table's column comes first."""
        if reference.qualifier == "frame":
            self._frame(reference)
            return None
        names = [column.name for column in self.relation.columns]
        if reference.name in names:
            return names.index(reference.name)
        if not reference.exact:
            folded = reference.name.casefold()
            found = [index for index, name in enumerate(names) if name.casefold() == folded]
            if len(found) == 1:
                return found[0]
            if found:
                self._ambiguous(reference)
        if reference.qualifier or frame_column(reference) is None:
            self._unknown(reference, names)
        return None

    def own(self, reference: Reference) -> int:
        """The column's index, where a column of the frame makes no sense."""
        index = self.column(reference)
        if index is None:
            self._text.refuse(reference.offset, f"{reference.name} is not a column of the table")
        return index

    def _frame(self, reference: Reference) -> None:
        if frame_column(reference) is None:
            close = difflib.get_close_matches(reference.name, FRAME, n=1)
            meant = f", did you mean {close[0]}?" if close else f": it has {', '.join(FRAME)}"
            self._text.refuse(reference.offset, f"the frame has no {reference.name}{meant}")

    def _ambiguous(self, reference: Reference) -> NoReturn:
        self._text.refuse(
            reference.offset,
            f"{self.relation.qualified_name} has columns that differ from {reference.name} in case "
            "alone: write the one that is meant in backticks",
        )

    def _unknown(self, reference: Reference, names: list[str]) -> NoReturn:
        table = self.relation.qualified_name
        close = difflib.get_close_matches(reference.name, [*names, *FRAME], n=1)
        meant = f", did you mean {close[0]}?" if close else ""
        self._text.refuse(reference.offset, f"{table} has no column {reference.name}{meant}")


def frame_column(reference: Reference) -> str | None:
    """Spark SQL for a column of the frame, if there is one of this name."""
    return FRAME.get(reference.name if reference.exact else reference.name.lower())


class Row(_Table):
    """One change: `before.x`, `after.x`, and `x` for the new row, or the old one of a delete."""

    def value(self, reference: Reference) -> str:
        """The value of a column."""
        index = self.column(reference)
        if index is None:
            return FRAME[reference.name.lower()]
        column = self.relation.columns[index]
        return cells.value(self.text(reference), column, place=self.place(index))

    def text(self, reference: Reference) -> str:
        """PostgreSQL's text of a column."""
        index = self.own(reference)
        match reference.qualifier:
            case "after":
                return self._after(index)
            case "before":
                return self._before(index)
            case _:
                return (
                    f"(CASE WHEN after IS NOT NULL THEN {self._after(index)} "
                    f"ELSE {self._deleted(index)} END)"
                )

    def unchanged(self, reference: Reference) -> str:
        """Whether the new row lacks the value and the old row does not help."""
        index = self.own(reference)
        return "FALSE" if reference.qualifier == "before" else unchanged(self.relation, index)

    def absent(self, reference: Reference) -> str:
        """Whether the old row, where one is due, lacks the value."""
        index = self.own(reference)
        if reference.qualifier == "after":
            return "FALSE"
        if reference.qualifier == "before":
            return f"({absent(index)} OR {self._no_old_row(index)})"
        return f"(after IS NULL AND {absent(index)})"

    def _no_old_row(self, index: int) -> str:
        """PostgreSQL sends no old row when an update leaves the key alone."""
        return "FALSE" if self._column(index).key else "(before IS NULL AND op = 'update')"

    def _column(self, index: int) -> Column:
        return self.relation.columns[index]

    def _after(self, index: int) -> str:
        if not cells.toastable(self._column(index)):
            return f"get(after, {index})"
        refusal = sql.stop(
            f"{self.place(index)} is unchanged and PostgreSQL did not send it; test it with "
            "is_unchanged(), or set REPLICA IDENTITY FULL"
        )
        old = f"WHEN before IS NOT NULL AND NOT {absent(index)} THEN get(before, {index})"
        return (
            f"(CASE WHEN NOT {_listed('unchanged', index)} THEN get(after, {index}) "
            f"{old} ELSE {refusal} END)"
        )

    def _before(self, index: int) -> str:
        missing = (
            f"WHEN op = 'update' THEN {self._after(index)}"
            if self._column(index).key
            else f"WHEN op = 'update' THEN {self._not_sent(index)}"
        )
        return f"(CASE WHEN before IS NOT NULL THEN {self._deleted(index)} {missing} END)"

    def _deleted(self, index: int) -> str:
        refusal = self._not_sent(index)
        return f"(CASE WHEN {absent(index)} THEN {refusal} ELSE get(before, {index}) END)"

    def _not_sent(self, index: int) -> str:
        return sql.stop(
            f"{self.place(index)} is not part of the old key and PostgreSQL did not send it; test "
            "it with is_absent(), or set REPLICA IDENTITY FULL"
        )


class Image(Row):
    """One row image: a bare name is a column of this image and of no other."""

    def __init__(self, text: Text, relation: Relation, image: str) -> None:
        super().__init__(text, relation)
        self._image = image

    def text(self, reference: Reference) -> str:
        """PostgreSQL's text of a column."""
        index = self.own(reference)
        return self._after(index) if self._image == "after" else self._deleted(index)

    def unchanged(self, reference: Reference) -> str:
        """Whether this image lacks the value as unchanged."""
        index = self.own(reference)
        return unchanged(self.relation, index) if self._image == "after" else "FALSE"

    def absent(self, reference: Reference) -> str:
        """Whether this image lacks the value as absent."""
        index = self.own(reference)
        return absent(index) if self._image == "before" else "FALSE"


class Message:
    """A logical message: it has no row, so every column is NULL, known to be so."""

    def value(self, reference: Reference) -> str:
        """The frame's columns; NULL for others."""
        if reference.qualifier in ("before", "after"):
            return "NULL"
        return frame_column(reference) or "NULL"

    def text(self, reference: Reference) -> str:
        """NULL."""
        return self.value(reference)

    def unchanged(self, _reference: Reference) -> str:
        """No."""
        return "FALSE"

    def absent(self, _reference: Reference) -> str:
        """No."""
        return "FALSE"


class Typed(_Table):
    """Columns of an empty frame with the types that values have, so that Spark's messages speak
    of `after.price` and not of the cells behind it. `columns` has their types by name."""

    def __init__(self, text: Text, relation: Relation) -> None:
        super().__init__(text, relation)
        self.columns: dict[str, str] = {}

    def value(self, reference: Reference) -> str:
        """A column of the empty frame."""
        index = self.column(reference)
        if index is None:
            return self._named("frame", -1, reference.name.lower(), FRAME_TYPES)
        column = self.relation.columns[index]
        kinds = {column.name: cells.spark_type(column)}
        return self._named(reference.qualifier, index, column.name, kinds)

    def text(self, reference: Reference) -> str:
        """A column of type string."""
        index = self.own(reference)
        name = self.relation.columns[index].name
        return self._named(f"{reference.qualifier}.text", index, name, {name: "STRING"})

    def unchanged(self, reference: Reference) -> str:
        """A condition."""
        self.own(reference)
        return "FALSE"

    def absent(self, reference: Reference) -> str:
        """A condition."""
        return self.unchanged(reference)

    def _named(self, qualifier: str, index: int, name: str, kinds: Mapping[str, str]) -> str:
        shown = f"{qualifier}.{name}".removeprefix(".")
        # Spark does not tell names apart that differ in case alone, and `op` is the frame's.
        twins = [column for column in self.relation.columns if column.name.lower() == name.lower()]
        if len(twins) > 1 or shown.lower() == "op":
            shown = f"{shown}#{index}"
        self.columns[shown] = kinds[name]
        return sql.name(shown)


def unchanged(relation: Relation, index: int) -> str:
    """Whether a value of the new row is unchanged and the old row does not hold it either."""
    if not cells.toastable(relation.columns[index]):
        return "FALSE"
    return f"({_listed('unchanged', index)} AND (before IS NULL OR {absent(index)}))"


def absent(index: int) -> str:
    """Whether a value of the old row was not sent."""
    return _listed("absent", index)


def _listed(column: str, index: int) -> str:
    return f"coalesce(array_contains({column}, {index}), FALSE)"
