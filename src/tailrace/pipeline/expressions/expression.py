"""The expressions of a pipeline, such as `where` and `select`, parsed and checked.

This module makes every check that needs no table. `tailrace.pipeline.expressions.compile` resolves
the names against the columns of a table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlglot import exp

from tailrace.pipeline.expressions import limits, syntax
from tailrace.pipeline.expressions.allowed import QUALIFIERS
from tailrace.pipeline.expressions.lookups import Lookup
from tailrace.pipeline.expressions.render import Renderer
from tailrace.pipeline.expressions.syntax import Text, offset
from tailrace.sinks.registry import SINKS

if TYPE_CHECKING:
    from tailrace import config
    from tailrace.pipeline.expressions.lookups import Lookups
    from tailrace.pipeline.expressions.reference import Names, Reference

_OF_ROWS = QUALIFIERS | {""}
_MAX_NAME_BYTES = 63
"""PostgreSQL's limit for identifiers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """One expression that passed the allow-list.

    `references` are the columns whose values it reads. `guarded` are the columns that it tests with
    is_unchanged(), is_absent() or is_known().
    """

    text: Text
    tree: exp.Expr
    references: tuple[Reference, ...]
    guarded: tuple[Reference, ...]

    def render(self, names: Names) -> str:
        """The expression as Spark SQL, with its names resolved by `names`."""
        return Renderer(self.text, names).sql(self.tree)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One column of `select`. `name` is None for a plain column that keeps its name."""

    name: str | None
    expression: Expression

    @property
    def column(self) -> Reference | None:
        """The reference, if the item is a plain column."""
        tree = self.expression.tree
        plain = isinstance(tree, exp.Column) and len(self.expression.references) == 1
        reference = self.expression.references[0] if plain else None
        return reference if reference is None or reference.qualifier in _OF_ROWS else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expressions:
    """The expressions of one pipeline; None for those that it does not have."""

    where: Expression | None = None
    select: tuple[Item, ...] | None = None
    route: Expression | None = None
    key: Expression | None = None
    group: Expression | None = None
    payload: Expression | None = None
    headers: tuple[tuple[str, Expression], ...] = ()
    lookups: Lookups = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.all())

    def all(self) -> tuple[Expression, ...]:
        """Every expression."""
        items = (item.expression for item in self.select or ())
        return (*self.singles(), *items, *(() if self.group is None else (self.group,)))

    def singles(self) -> tuple[Expression, ...]:
        """Those that see the old and the new row: all but `select` and `group`."""
        headers = (expression for _, expression in self.headers)
        expressions = (self.where, self.route, self.key, self.payload, *headers)
        return tuple(expression for expression in expressions if expression is not None)


def parse(pipeline: config.Pipeline, *, name: str = "") -> Expressions:
    """Parse and check the expressions of a pipeline; error messages use `name`."""
    prefix = f"pipelines.{name}." if name else ""
    lookups = {
        each: Lookup(name=each, **settings.model_dump())
        for each, settings in pipeline.enrich.items()
    }

    def single(stage: str, sql: str) -> Expression | None:
        return _parsed(Text(f"{prefix}{stage}", sql), lookups) if sql.strip() else None

    where = single("where", pipeline.where)
    if where is not None:
        _check_repeatable(where, pipeline, lookups)
    return Expressions(
        where=where,
        select=_items(f"{prefix}select", pipeline.select, lookups) if pipeline.select else None,
        route=single("route", pipeline.route),
        key=single("key", pipeline.key),
        group=_group(Text(f"{prefix}group", pipeline.group)) if pipeline.group.strip() else None,
        payload=single("payload", pipeline.payload),
        headers=tuple(
            (header, _parsed(Text(f"{prefix}headers.{header}", sql), lookups))
            for header, sql in pipeline.headers.items()
        ),
        lookups=lookups,
    )


def _check_repeatable(where: Expression, pipeline: config.Pipeline, lookups: Lookups) -> None:
    """Refuse lookups in `where` if a replayed batch must have the same rows in each lane.

    A sink that stores positions compares what a lane has stored with what it is given again.
    """
    looked_up = [each for each in where.references if each.qualifier in lookups]
    sink = pipeline.sink
    if looked_up and pipeline.lanes > 1 and SINKS.find(sink.type).stores_position(sink):
        where.text.refuse(
            looked_up[0].offset,
            f"{looked_up[0].qualifier} is a lookup, which may find another row when a batch is "
            f"replayed: with several lanes the sink {sink.type} needs the same rows. Use lanes: 1, "
            "or filter by columns of the table.",
        )


def _parsed(text: Text, lookups: Lookups) -> Expression:
    return _checked(text, syntax.parse(text), _Recorder(text, lookups))


def _group(text: Text) -> Expression:
    """An expression over one row, without lookups: their rows may change, and with them the group
    that a change belonged to."""
    return _checked(text, syntax.parse(text), _Recorder(text, {}, one_image=True))


def _items(place: str, select: tuple[str, ...], lookups: Lookups) -> tuple[Item, ...]:
    items = tuple(
        _item(Text(f"{place}[{index}]", sql), lookups) for index, sql in enumerate(select)
    )
    names = [item.name or (item.column.name if item.column else "") for item in items]
    for index, name in enumerate(names):
        if name in names[:index]:
            items[index].expression.text.refuse(
                0, f"the name {name} is already used by an earlier item"
            )
    return items


def _item(text: Text, lookups: Lookups) -> Item:
    tree = syntax.parse(text, named=True)
    name: str | None = None
    if isinstance(tree, exp.Alias):
        name, tree = _alias(text, tree)
    item = Item(
        name=name, expression=_checked(text, tree, _Recorder(text, lookups, one_image=True))
    )
    if item.column is None and name is None:
        text.refuse(0, "an expression needs a name: add AS name")
    return item


def _alias(text: Text, tree: exp.Alias) -> tuple[str, exp.Expr]:
    alias = tree.args.get("alias")
    if not isinstance(alias, exp.Identifier) or not alias.name:
        text.refuse(offset(tree), "AS must be followed by a name")
    if len(alias.name.encode()) > _MAX_NAME_BYTES or "\0" in alias.name:
        text.refuse(offset(alias), f"a name may have at most {_MAX_NAME_BYTES} bytes")
    return alias.name, tree.this


def _checked(text: Text, tree: exp.Expr, recorder: _Recorder) -> Expression:
    Renderer(text, recorder).sql(tree)
    limits.check(text, tree)
    return Expression(
        text=text, tree=tree, references=tuple(recorder.references), guarded=tuple(recorder.guarded)
    )


class _Recorder:
    """Resolves every name to NULL and records the references: for checks without a table."""

    def __init__(self, text: Text, lookups: Lookups, *, one_image: bool = False) -> None:
        self._text = text
        self.lookups = lookups
        self._one_image = one_image
        self.references: list[Reference] = []
        self.guarded: list[Reference] = []

    def value(self, reference: Reference) -> str:
        self._check(reference)
        self.references.append(reference)
        return "NULL"

    def text(self, reference: Reference) -> str:
        return self.value(reference)

    def condition(self, text: str) -> str:
        return text

    def unchanged(self, reference: Reference) -> str:
        self._check(reference)
        self.guarded.append(reference)
        return "NULL"

    def absent(self, reference: Reference) -> str:
        return self.unchanged(reference)

    def _check(self, reference: Reference) -> None:
        if self._one_image and reference.qualifier in ("before", "after"):
            self._text.refuse(
                reference.offset,
                f"{self._text.stage} applies to the old and to the new row: write "
                f"{reference.name} without {reference.qualifier}.",
            )
