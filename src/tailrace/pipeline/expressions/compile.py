"""Checked expressions and one version of a table, made into Spark SQL over the cells frame.

The text made here is the only SQL that reaches Spark. Several versions of several tables become
one text with `combine`, which chooses by the frame's `relation` column.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.pipeline.expressions import cells, sql
from tailrace.pipeline.expressions.names import Image, Message, Row, absent, unchanged
from tailrace.schema import Column, Relation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.pipeline.expressions.expression import Expression, Expressions, Item
    from tailrace.pipeline.expressions.render import Names
    from tailrace.schema import TypeName


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """One column of `select`, for the new row and for the old.

    `after` and `before` give the value as PostgreSQL's text once `column.type_oid` is known. For
    an expression the type is Spark's to say: until `analysis.analyse` has asked, its
    oid is 0 and the two give the value itself. `unchanged` and `absent` say whether the value is
    not known in the new and in the old row.
    """

    column: Column
    after: str
    before: str
    unchanged: str
    absent: str
    item: Item


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The Spark SQL of one pipeline for one version of a table, or for messages (None)."""

    relation: Relation | None
    where: str | None
    route: str | None
    key: str | None
    select: tuple[Selected, ...] | None

    @property
    def selected(self) -> Relation | None:
        """The relation that messages are made with: the table's own columns, or the selected."""
        if self.relation is None or self.select is None:
            return self.relation
        return replace(self.relation, columns=tuple(item.column for item in self.select))

    def images(self) -> dict[str, str]:
        """Spark SQL for `before`, `after`, `unchanged` and `absent` after `select`."""
        items = self.select
        if items is None:
            return {name: name for name in ("before", "after", "unchanged", "absent")}
        return {
            "before": _image("before", [item.before for item in items]),
            "after": _image("after", [item.after for item in items]),
            "unchanged": _indexes("after", [item.unchanged for item in items]),
            "absent": _indexes("before", [item.absent for item in items]),
        }


def compile(  # noqa: A001 - the module's one verb
    expressions: Expressions, relation: Relation | None, types: Mapping[int, TypeName]
) -> Compiled:
    """Resolve the names against one version of a table; None is for logical messages.

    Raises `ExpressionError` where a column is unknown, naming the table.
    """
    del types  # a type outside of PostgreSQL's own is text to an expression

    def made(expression: Expression | None) -> str | None:
        if expression is None:
            return None
        return expression.render(_names(expression, relation))

    def made_text(expression: Expression | None) -> str | None:
        return None if expression is None else f"CAST({made(expression)} AS STRING)"

    select = None
    if expressions.select is not None and relation is not None:
        select = tuple(_selected(item, relation) for item in expressions.select)
        _distinct_names(expressions.select, select)
    return Compiled(
        relation=relation,
        where=made(expressions.where),
        route=made_text(expressions.route),
        key=made_text(expressions.key),
        select=select,
    )


def _names(expression: Expression, relation: Relation | None) -> Names:
    return Message() if relation is None else Row(expression.text, relation)


def _selected(item: Item, relation: Relation) -> Selected:
    expression = item.expression
    new, old = (Image(expression.text, relation, image) for image in ("after", "before"))
    plain = item.column
    index = new.column(plain) if plain is not None else None
    if plain is not None and index is not None:
        column = relation.columns[index]
        return Selected(
            column=replace(column, name=item.name or column.name),
            after=_unless(unchanged(relation, index), new.text(plain)),
            before=_unless(absent(index), f"get(before, {index})"),
            unchanged=unchanged(relation, index),
            absent=absent(index),
            item=item,
        )
    name = item.name or (plain.name if plain is not None else "")
    lost, missing = _not_known(expression, new, relation)
    return Selected(
        column=Column(name=name, type_oid=0),
        after=_unless(lost, expression.render(new)),
        before=_unless(missing, expression.render(old)),
        unchanged=lost,
        absent=missing,
        item=item,
    )


def _not_known(expression: Expression, names: Image, relation: Relation) -> tuple[str, str]:
    """When an expression has no value: in the new row, and in the old.

    An expression of unchanged values alone is unchanged itself. One that mixes them with others
    can not be computed, and reading the value stops the query. In an old key it is simply not
    there, like the columns it needs.
    """
    found = [names.column(reference) for reference in expression.references]
    columns = sorted({index for index in found if index is not None})
    if expression.guarded or not columns:
        return "FALSE", "FALSE"
    lost = [unchanged(relation, index) for index in columns]
    framed = None in found or "FALSE" in lost
    missing = [absent(index) for index in columns]
    return "FALSE" if framed else f"({' AND '.join(lost)})", f"({' OR '.join(missing)})"


def _unless(unknown: str, value: str) -> str:
    return value if unknown == "FALSE" else f"CASE WHEN NOT {unknown} THEN {value} END"


def _distinct_names(items: Sequence[Item], selected: Sequence[Selected]) -> None:
    names = [entry.column.name for entry in selected]
    for index, name in enumerate(names):
        if name in names[:index]:
            items[index].expression.text.refuse(0, f"the name {name} is taken by an item before")


def _image(image: str, values: Sequence[str]) -> str:
    return f"CASE WHEN {image} IS NOT NULL THEN array({', '.join(values)}) END"


def _indexes(image: str, tests: Sequence[str]) -> str:
    found = [
        f"CASE WHEN {test} THEN {index} END" for index, test in enumerate(tests) if test != "FALSE"
    ]
    empty = "CAST(array() AS ARRAY<INT>)"
    if not found:
        return empty
    listed = f"array_compact(array({', '.join(found)}))"
    return f"CASE WHEN {image} IS NOT NULL THEN {listed} ELSE {empty} END"


def typed(selected: Selected, kind: str) -> Selected:
    """A computed column whose type Spark has told, in Spark's spelling."""
    new, old = cells.text_of(selected.after, kind), cells.text_of(selected.before, kind)
    if new is None or old is None:
        selected.item.expression.text.refuse(
            0, f"{selected.column.name} is of type {kind}, which no message can hold: cast it"
        )
    column = replace(selected.column, type_oid=new[1])
    return replace(selected, column=column, after=new[0], before=old[0])


def combine(texts: Mapping[int, str], *, message: str | None = None) -> str:
    """One text out of those for several relation versions, by their fingerprints.

    `message` is for rows without a relation, None where there are none. A version that is not
    among them stops the query: the plan has to be made again.
    """
    words = ["CASE"]
    if message is not None:
        words.append(f"WHEN relation IS NULL THEN {message}")
    words += [f"WHEN relation = {number}L THEN {text}" for number, text in texts.items()]
    words.append(f"ELSE {sql.stop('the plan does not know this version of the table')} END")
    return " ".join(words)


def fingerprint(relation: Relation, types: Mapping[int, TypeName]) -> int:
    """A stable number of 63 bits for a version of a relation and the types it uses."""
    used = {column.type_oid for column in relation.columns}
    parts = [
        relation.oid,
        relation.namespace,
        relation.name,
        relation.replica_identity.value,
        [[c.name, c.type_oid, c.type_modifier, c.key] for c in relation.columns],
        [[oid, types[oid].namespace, types[oid].name] for oid in sorted(used & types.keys())],
    ]
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
