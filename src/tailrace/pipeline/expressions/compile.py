"""The compiler: checked expressions and one version of a table → Spark SQL over the cells frame.

Only SQL that this module writes reaches Spark. `combine` joins the SQL for several versions of
several tables into one text that chooses by the frame's `relation` column.
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
    from collections.abc import Iterable, Mapping, Sequence

    from tailrace.pipeline.expressions.expression import Expression, Expressions, Item
    from tailrace.pipeline.expressions.lookups import Lookups
    from tailrace.pipeline.expressions.reference import Names
    from tailrace.schema import TypeName


NO_BYTES = "CAST(NULL AS BINARY)"
NO_HEADERS = "CAST(NULL AS MAP<STRING, STRING>)"
NO_GROUP = "CAST(NULL AS STRUCT<own: BINARY, former: BINARY>)"
_CONTROLS = sql.string(r"\p{Cntrl}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """One column of `select`: Spark SQL for the new row (`after`) and the old one (`before`).

    `after` and `before` return PostgreSQL's text of the value if `column.type_oid` is known. Only
    Spark knows the type of an expression: until `analysis.analyse` has asked, its oid is 0 and the
    two return the value itself. `unchanged` and `absent` are the conditions under which the value
    is not known in the new and in the old row.
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
    group: str | None
    """The group of the row and that of the old row, as a struct."""
    payload: str | None
    """The bytes of the message, once Spark has told the type; NULL leaves them to the shape."""
    headers: str | None
    select: tuple[Selected, ...] | None

    @property
    def selected(self) -> Relation | None:
        """The relation of the messages: with the columns of `select`, or with the table's own."""
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
    """Compile for one version of a table; None is for logical messages.

    Raises `ExpressionError` for an unknown column, with the name of the table.
    """
    del types  # An expression sees a type that is not built into PostgreSQL as text.

    def rendered(expression: Expression | None) -> str | None:
        if expression is None:
            return None
        return expression.render(_names(expression, relation, expressions.lookups))

    def rendered_text(expression: Expression | None) -> str | None:
        return None if expression is None else f"CAST({rendered(expression)} AS STRING)"

    select = None
    if expressions.select is not None and relation is not None:
        select = tuple(
            _selected(item, relation, expressions.lookups) for item in expressions.select
        )
        _refuse_repeated_names(expressions.select, select)
    return Compiled(
        relation=relation,
        where=rendered(expressions.where),
        route=rendered_text(expressions.route),
        key=rendered_text(expressions.key),
        group=_group(expressions.group, relation),
        payload=NO_BYTES if relation is None else rendered(expressions.payload),
        headers=_headers(
            (name, expression.render(_names(expression, relation, expressions.lookups)))
            for name, expression in expressions.headers
        ),
        select=select,
    )


def _headers(values: Iterable[tuple[str, str]]) -> str | None:
    """A map without NULLs. A control character would end a header, and blanks around it vanish."""
    entries = [
        f"{sql.string(name)}, trim(regexp_replace(CAST({value} AS STRING), {_CONTROLS}, ' '))"
        for name, value in values
    ]
    if not entries:
        return None
    return f"map_filter(map({', '.join(entries)}), (name, value) -> value IS NOT NULL)"


def _group(group: Expression | None, relation: Relation | None) -> str | None:
    """An update may move a row to another group. Its old row must tell, as for keys."""
    if group is None or relation is None:
        return NO_GROUP
    own, old = Row(group.text, relation, {}), Image(group.text, relation, {}, "before")
    for reference in (*group.references, *group.guarded):
        column = relation.columns[own.own(reference)]
        if not column.key:
            group.text.refuse(
                reference.offset,
                f"{relation.qualified_name}.{column.name} is not in the replica identity, so "
                "PostgreSQL does not send its old value: set REPLICA IDENTITY FULL",
            )
    new = _bytes(group.render(own))
    former = f"CASE WHEN op = 'update' AND before IS NOT NULL THEN {_bytes(group.render(old))} "
    return (
        "CASE WHEN after IS NOT NULL OR before IS NOT NULL THEN "
        f"named_struct('own', {new}, 'former', {former} ELSE {new} END) END"
    )


def _bytes(value: str) -> str:
    return f"CAST(CAST({value} AS STRING) AS BINARY)"


def _names(expression: Expression, relation: Relation | None, lookups: Lookups) -> Names:
    return Message(lookups) if relation is None else Row(expression.text, relation, lookups)


def _selected(item: Item, relation: Relation, lookups: Lookups) -> Selected:
    expression = item.expression
    new, old = (Image(expression.text, relation, lookups, image) for image in ("after", "before"))
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
    lost, missing = _unknown_conditions(expression, new, relation)
    return Selected(
        column=Column(name=name, type_oid=0),
        after=_unless(lost, expression.render(new)),
        before=_unless(missing, expression.render(old)),
        unchanged=lost,
        absent=missing,
        item=item,
    )


def _unknown_conditions(
    expression: Expression, names: Image, relation: Relation
) -> tuple[str, str]:
    """The conditions under which an expression has no value: in the new row, and in the old one.

    | the expression reads                | new row                     | old row                  |
    |-------------------------------------|-----------------------------|--------------------------|
    | unchanged values only               | unchanged, like its columns | -                        |
    | unchanged values and others         | stops the query             | -                        |
    | a column that is not in the old key | -                           | absent, like that column |
    | columns tested with is_known() etc. | always computed             | always computed          |
    """
    indexes = [names.column(reference) for reference in expression.references]
    columns = sorted({index for index in indexes if index is not None})
    if expression.guarded or not columns:
        return "FALSE", "FALSE"
    lost = [unchanged(relation, index) for index in columns]
    always_known = None in indexes or "FALSE" in lost
    missing = [absent(index) for index in columns]
    return "FALSE" if always_known else f"({' AND '.join(lost)})", f"({' OR '.join(missing)})"


def _unless(unknown: str, value: str) -> str:
    return value if unknown == "FALSE" else f"CASE WHEN NOT {unknown} THEN {value} END"


def _refuse_repeated_names(items: Sequence[Item], selected: Sequence[Selected]) -> None:
    names = [entry.column.name for entry in selected]
    for index, name in enumerate(names):
        if name in names[:index]:
            items[index].expression.text.refuse(
                0, f"the name {name} is already used by an earlier item"
            )


def _image(image: str, values: Sequence[str]) -> str:
    return f"CASE WHEN {image} IS NOT NULL THEN array({', '.join(values)}) END"


def _indexes(image: str, tests: Sequence[str]) -> str:
    """The numbers of the columns whose test is true, as an array."""
    cases = [
        f"CASE WHEN {test} THEN {index} END" for index, test in enumerate(tests) if test != "FALSE"
    ]
    empty = "CAST(array() AS ARRAY<INT>)"
    if not cases:
        return empty
    listed = f"array_compact(array({', '.join(cases)}))"
    return f"CASE WHEN {image} IS NOT NULL THEN {listed} ELSE {empty} END"


def typed_payload(compiled: Compiled, expression: Expression, kind: str) -> Compiled:
    """With the payload as bytes."""
    assert compiled.payload is not None
    payload = cells.payload_of(compiled.payload, kind)
    if payload is None:
        expression.text.refuse(0, f"it has type {kind}, which messages do not support: cast it")
    return replace(compiled, payload=payload)


def typed(selected: Selected, kind: str) -> Selected:
    """A computed column whose type is known; `kind` is Spark's spelling."""
    new, old = cells.text_of(selected.after, kind), cells.text_of(selected.before, kind)
    if new is None or old is None:
        selected.item.expression.text.refuse(
            0, f"{selected.column.name} has type {kind}, which messages do not support: cast it"
        )
    column = replace(selected.column, type_oid=new[1])
    return replace(selected, column=column, after=new[0], before=old[0])


def combine(
    texts: Mapping[int, str], *, message: str | None = None, mark: str | None = None
) -> str:
    """One CASE expression out of the SQL for several versions of tables, by fingerprint.

    `message` is for logical messages, which have no relation; `mark` is for rows that say how far
    an open batch has come. A version that is not among them stops the query; the source prevents
    that by ending the batch before it.

    >>> combine({7: "a"}, message="b", mark="c")[10:95]
    'open_batch IS NOT NULL THEN c WHEN relation IS NULL THEN b WHEN relation = 7L THEN a '
    """
    words = ["CASE"]
    if mark is not None:
        words.append(f"WHEN open_batch IS NOT NULL THEN {mark}")
    if message is not None:
        words.append(f"WHEN relation IS NULL THEN {message}")
    words += [f"WHEN relation = {number}L THEN {text}" for number, text in texts.items()]
    words.append(f"ELSE {sql.stop('the plan does not know this version of the table')} END")
    return " ".join(words)


def fingerprint(relation: Relation, types: Mapping[int, TypeName]) -> int:
    """A stable 63-bit number for a version of a relation and the types it uses.

    Specs and plans hold it, and Spark compares it as a BIGINT, which has no unsigned form.
    """
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
