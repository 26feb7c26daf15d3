"""Resolution of names: what a column means, as Spark SQL over the cells frame.

| class     | for                     | a bare name `x` means                                  |
|-----------|-------------------------|--------------------------------------------------------|
| `Row`     | `where`, `route`, `key` | the new row's x; the old row's x of a delete           |
| `Image`   | `select`                | x of one row image; `select` is compiled once for each |
| `Message` | logical messages        | a field of the change, or NULL: a message has no row   |
| `Typed`   | Spark's analyzer        | an empty column of the right type                      |

A bare name that is both a column of the table and a field of the change is refused: `row.x` is the
column, `change.x` the field.

Reading a value that PostgreSQL did not send stops the query: an unchanged large value that the old
row does not hold either, or a column outside of the old key. It is never read as NULL.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, NoReturn

from tailrace.pipeline.expressions import cells, sql

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.pipeline.expressions.lookups import Lookup, Lookups
    from tailrace.pipeline.expressions.reference import Reference
    from tailrace.pipeline.expressions.syntax import Text
    from tailrace.schema import Column, Relation

FRAME = {
    **{name: sql.name(name) for name in ("op", "schema", "table", "lsn", "ordinal", "xid")},
    **{name: sql.name(name) for name in ("committed_at", "annotations")},
    "_id": sql.EVENT_ID,
}
"""The fields of the change itself that expressions may read. `_id` is the event id."""

FRAME_TYPES = {
    **dict.fromkeys(("op", "schema", "table", "annotations", "_id"), "STRING"),
    **dict.fromkeys(("lsn", "ordinal", "xid"), "BIGINT"),
    "committed_at": "TIMESTAMP",
}
"""Their Spark types."""


class _Table:
    """The columns of one relation, by name."""

    own_qualifier = "after"
    """What an error message suggests for a column whose bare name is ambiguous."""

    def __init__(self, text: Text, relation: Relation, lookups: Lookups) -> None:
        self._text = text
        self.relation = relation
        self.lookups = lookups

    def place(self, index: int) -> str:
        """The column's full name, for error messages."""
        return f"{self.relation.qualified_name}.{self.relation.columns[index].name}"

    def column(self, reference: Reference) -> int | None:
        """The column's index; None for a field of the change. For a column of a lookup it is the
        index of the lookup's key.

        | name       | the table has a column x | x is a field of the change | result     |
        |------------|--------------------------|----------------------------|------------|
        | `x`        | yes                      | no                         | the column |
        | `x`        | no                       | yes                        | the field  |
        | `x`        | yes                      | yes                        | refused    |
        | `row.x`    | yes                      | -                          | the column |
        | `change.x` | -                        | yes                        | the field  |
        """
        if reference.qualifier == "change":
            self._check_field(reference)
            return None
        names = [column.name for column in self.relation.columns]
        if lookup := self.lookups.get(reference.qualifier):
            return self._key_of(lookup, reference, names)
        index = self._index(reference, names)
        is_field = not reference.qualifier and frame_column(reference) is not None
        if index is not None and is_field:
            self._refuse_column_or_field(reference)
        if index is None and not is_field:
            self._refuse_unknown(reference, names)
        return index

    def _index(self, reference: Reference, names: list[str]) -> int | None:
        """The column with this name; None if there is none."""
        if reference.name in names:
            return names.index(reference.name)
        if reference.exact:
            return None
        folded = reference.name.casefold()
        matches = [index for index, name in enumerate(names) if name.casefold() == folded]
        if len(matches) > 1:
            self._refuse_ambiguous(reference)
        return matches[0] if matches else None

    def _key_of(self, lookup: Lookup, reference: Reference, names: list[str]) -> int:
        if lookup.key not in names:
            self._text.refuse(
                reference.offset,
                f"{self.relation.qualified_name} has no column {lookup.key}, which is the key of "
                f"the lookup {lookup.name}",
            )
        return names.index(lookup.key)

    def _looked_up(self, reference: Reference) -> tuple[Lookup, Column, int] | None:
        """The column of a lookup that an expression names, and its place in the frame."""
        lookup = self.lookups.get(reference.qualifier)
        if lookup is None:
            return None
        at = lookup.column(self._text, reference)
        return lookup, lookup.columns[at], lookup.first + at

    def own(self, reference: Reference) -> int:
        """The column's index; refuses a field of the change."""
        index = self.column(reference)
        if index is None:
            self._text.refuse(reference.offset, f"{reference.name} is not a column of the table")
        return index

    def condition(self, text: str) -> str:
        """As it is."""
        return text

    def _check_field(self, reference: Reference) -> None:
        if frame_column(reference) is None:
            close = difflib.get_close_matches(reference.name, FRAME, n=1)
            known = f", did you mean {close[0]}?" if close else f": it has {', '.join(FRAME)}"
            self._text.refuse(reference.offset, f"a change has no field {reference.name}{known}")

    def _refuse_column_or_field(self, reference: Reference) -> NoReturn:
        name = reference.name
        self._text.refuse(
            reference.offset,
            f"{name} is a column of {self.relation.qualified_name} and a field of the change: "
            f"write {self.own_qualifier}.{name} or change.{name}",
        )

    def _refuse_ambiguous(self, reference: Reference) -> NoReturn:
        self._text.refuse(
            reference.offset,
            f"{self.relation.qualified_name} has several columns that match {reference.name} "
            "without case: write the name in backticks",
        )

    def _refuse_unknown(self, reference: Reference, names: list[str]) -> NoReturn:
        name, qualifier = reference.name, reference.qualifier
        known = names if qualifier else [*names, *FRAME]
        close = difflib.get_close_matches(name, known, n=1)
        suggestion = f", did you mean {close[0]}?" if close else ""
        if qualifier and frame_column(reference) is not None:
            suggestion = f', {name} without "{qualifier}." is a field of the change'
        self._text.refuse(
            reference.offset, f"{self.relation.qualified_name} has no column {name}{suggestion}"
        )


def frame_column(reference: Reference) -> str | None:
    """Spark SQL for the field of the change with this name; None if there is none."""
    return FRAME.get(reference.name if reference.exact else reference.name.lower())


class Row(_Table):
    """One change: `before.x`, `after.x`, and `x` or `row.x` for the new row, or the old row of a
    delete."""

    def value(self, reference: Reference) -> str:
        """The value of a column."""
        if found := self._looked_up(reference):
            lookup, column, _ = found
            text = self.text(reference)
            return cells.value(text, column, place=f"{lookup.name}.{column.name}")
        index = self.column(reference)
        if index is None:
            return FRAME[reference.name.lower()]
        column = self.relation.columns[index]
        return cells.value(self.text(reference), column, place=self.place(index))

    def text(self, reference: Reference) -> str:
        """PostgreSQL's text of a column."""
        if found := self._looked_up(reference):
            return self._text_of_lookup(reference, *found)
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
        """Whether the new row lacks the value and the old row does not hold it either."""
        index = self.own(reference)
        return "FALSE" if reference.qualifier == "before" else unchanged(self.relation, index)

    def absent(self, reference: Reference) -> str:
        """Whether the old row lacks the value, where the expression reads the old row."""
        index = self.own(reference)
        if reference.qualifier == "after":
            return "FALSE"
        if reference.qualifier == "before":
            return f"({absent(index)} OR {self._no_old_row(index)})"
        return f"(after IS NULL AND {absent(index)})"

    def _text_of_lookup(
        self, reference: Reference, lookup: Lookup, _column: Column, place: int
    ) -> str:
        """A lookup whose key is not known has found nothing, which must not be read as NULL."""
        refusal = sql.stop(
            f"{self.place(self.own(reference))} was not sent, which is the key of the lookup "
            f"{lookup.name}; set REPLICA IDENTITY FULL, or test op first"
        )
        unknown = f"{self.unchanged(reference)} OR {self.absent(reference)}"
        return f"(CASE WHEN {unknown} THEN {refusal} ELSE get(looked_up, {place}) END)"

    def _no_old_row(self, index: int) -> str:
        """PostgreSQL sends no old row if an update does not change the key."""
        return "FALSE" if self._column(index).key else "(before IS NULL AND op = 'update')"

    def _column(self, index: int) -> Column:
        return self.relation.columns[index]

    def _after(self, index: int) -> str:
        """The new row's text; an unchanged large value is taken from the old row, if it is
        there."""
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
        """The old row's text; without an old row the key has not changed, so the new one has it."""
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
    """One row image, `after` or `before`: a bare name is a column of this image only."""

    own_qualifier = "row"

    def __init__(self, text: Text, relation: Relation, lookups: Lookups, image: str) -> None:
        super().__init__(text, relation, lookups)
        self._image = image

    def text(self, reference: Reference) -> str:
        """PostgreSQL's text of a column."""
        if found := self._looked_up(reference):
            return self._text_of_lookup(reference, *found)
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


_NULL = "CASE WHEN op IS NULL THEN NULL END"
"""NULL that Spark does not take for a constant. With a plain NULL in place of a column,
`concat_ws('', 'no', 'w', x)` is a constant text, and as a date it is the current day."""


class Message:
    """A logical message: it has no row, so every column is NULL, and that is known."""

    def __init__(self, lookups: Lookups) -> None:
        self.lookups = lookups

    def value(self, reference: Reference) -> str:
        """The fields of the change; NULL for other names."""
        if reference.qualifier not in ("", "change"):
            return _NULL
        return frame_column(reference) or _NULL

    def text(self, reference: Reference) -> str:
        """NULL."""
        return self.value(reference)

    def condition(self, text: str) -> str:
        """A boolean: Spark does not accept a NULL without a type as a condition."""
        return f"({text} IS TRUE)"

    def unchanged(self, _reference: Reference) -> str:
        """No."""
        return "FALSE"

    def absent(self, _reference: Reference) -> str:
        """No."""
        return "FALSE"


class Typed(_Table):
    """Columns of an empty frame with the types of the values, for Spark's analyzer.

    Spark's error messages then name `after.price` and not the SQL that reads the cell. `columns`
    has the types by name.
    """

    def __init__(self, text: Text, relation: Relation, lookups: Lookups) -> None:
        super().__init__(text, relation, lookups)
        self.columns: dict[str, str] = {}

    def value(self, reference: Reference) -> str:
        """A column of the empty frame."""
        if found := self._looked_up(reference):
            lookup, column, place = found
            kinds = {column.name: cells.spark_type(column)}
            return self._named(lookup.name, place, column.name, kinds)
        index = self.column(reference)
        if index is None:
            return self._named("change", -1, reference.name.lower(), FRAME_TYPES)
        column = self.relation.columns[index]
        kinds = {column.name: cells.spark_type(column)}
        return self._named(reference.qualifier, index, column.name, kinds)

    def text(self, reference: Reference) -> str:
        """A column of type string."""
        if found := self._looked_up(reference):
            lookup, column, place = found
            return self._named(f"{lookup.name}.text", place, column.name, {column.name: "STRING"})
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
        # Spark ignores the case of names, and the analyzed frame has a column `op` of its own.
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
