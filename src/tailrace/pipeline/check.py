"""`tailrace check`: pipelines against the live database, before they run.

Tables and columns are read from the catalogs as they are now. Running pipelines decode with the
stream's own Relation messages; the two agree unless a table changes in between.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tailrace.change import Op
from tailrace.errors import TailraceError
from tailrace.finding import Finding, Severity, error, info, warning
from tailrace.java import find_java
from tailrace.pipeline import enrich
from tailrace.pipeline.expressions import cells
from tailrace.pipeline.expressions.compile import compile as compiled
from tailrace.pipeline.expressions.expression import Expressions, parse
from tailrace.pipeline.expressions.names import Row
from tailrace.postgres.connection import connect
from tailrace.postgres.names import TableName
from tailrace.postgres.publication import read_publication
from tailrace.postgres.relations import Published, read_published
from tailrace.schema import ReplicaIdentity
from tailrace.sinks.registry import SINKS
from tailrace.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tailrace.config import Config, Pipeline
    from tailrace.pipeline.expressions.analysis import Types
    from tailrace.pipeline.expressions.expression import Expression
    from tailrace.pipeline.expressions.lookups import Lookups
    from tailrace.postgres.publication import PublicationState
    from tailrace.schema import Column, Relation

    Ask = Callable[[Expressions, Relation], Types]

CHECKS = (
    *("publication-exists", "pipeline-tables", "expression", "expression-unchanged"),
    *("expression-old-row", "route-type", "lanes-key", "select-key", "sink-destinations", "sink"),
    "spark",
)
"""The names of the findings; they are stable."""

_OPS = (Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result. `tables` and `types` are by pipeline; types are Spark's, by setting."""

    findings: tuple[Finding, ...] = ()
    tables: dict[str, list[str]] = field(default_factory=dict)
    types: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)

    @property
    def healthy(self) -> bool:
        """Whether no finding is an error."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)


def check(config: Config, *, spark: bool = True, sinks: bool = True) -> Report:
    """Check every pipeline of the settings. Changes nothing."""
    dsn = config.source.dsn.get_secret_value()
    with connect(dsn, connect_timeout_s=config.capture.connect_timeout_s) as connection:
        publication = read_publication(connection, config.source.publication)
        published = read_published(connection, publication) if publication else []
        database = connection.info.dbname
    found = [_missing(config)] if publication is None else []
    wanted = spark and _has_sql(config)
    ask = _analyser(config) if wanted else None
    if wanted and ask is None:
        found.append(_no_spark())
    source = _Source(publication, published, database, dsn)
    checks = [_Check(name, pipeline, source, ask) for name, pipeline in config.pipelines.items()]
    for each in checks:
        found += each.findings(sinks=sinks)
    order = list(Severity)
    return Report(
        findings=tuple(sorted(found, key=lambda f: order.index(f.severity))),
        tables={each.name: [str(_name(table)) for table in each.tables] for each in checks},
        types={each.name: each.types for each in checks},
    )


def _missing(config: Config) -> Finding:
    name = config.source.publication
    return replace(
        error(f"publication {name} does not exist", "tailrace init --table ...", name),
        check="publication-exists",
    )


def _no_spark() -> Finding:
    said = info("Java is missing, so types were not checked", "Install Java 17 or later.")
    return replace(said, check="spark")


def _has_sql(config: Config) -> bool:
    return any(pipeline.has_expressions for pipeline in config.pipelines.values())


def _analyser(config: Config) -> Ask | None:
    """Spark's analyser in a session of one thread; None where Spark cannot be started."""
    if importlib.util.find_spec("pyspark") is None or find_java() is None:
        return None
    # Imported here because these start Java.
    from tailrace.pipeline.expressions.analysis import SETTINGS, analyse, result_types  # noqa: PLC0415
    from tailrace.pipeline.session import build  # noqa: PLC0415

    conf = SETTINGS | config.spark.conf
    alone = config.spark.model_copy(update={"master": "local[1]", "conf": conf})
    session = build(alone, name="tailrace check", preload=False)

    def ask(expressions: Expressions, relation: Relation) -> Types:
        analyse(session, expressions, compiled(expressions, relation, {}))
        return result_types(session, expressions, relation)

    return ask


@dataclass(frozen=True, slots=True)
class _Source:
    """The facts of the database."""

    publication: PublicationState | None
    published: Sequence[Published]
    database: str
    dsn: str

    def publishes(self, operation: str) -> bool:
        return self.publication is None or bool(getattr(self.publication, operation))


class _Check:
    """One pipeline."""

    def __init__(self, name: str, pipeline: Pipeline, source: _Source, ask: Ask | None) -> None:
        self.name = name
        self.pipeline = pipeline
        self.types: dict[str, dict[str, str]] = {}
        self._lookups: Lookups = {}
        self._source = source
        self._ask = ask
        self._sink = SINKS.find(pipeline.sink.type)
        wanted = Tables(pipeline.tables)
        self.tables = [
            table
            for table in source.published
            if wanted.match(table.relation.namespace, table.relation.name)
        ]

    def findings(self, *, sinks: bool) -> Iterator[Finding]:
        """All findings of the pipeline."""
        yield from self._named("pipeline-tables", self._patterns())
        try:
            expressions = parse(self.pipeline, name=self.name)
            if expressions.lookups:
                expressions = enrich.with_columns(expressions, self._source.dsn)
        except TailraceError as refusal:
            yield from self._named("expression", [error(str(refusal), refusal.hint)])
            expressions = Expressions()
        self._lookups = expressions.lookups
        for table in self.tables:
            yield from self._table(expressions, table)
        yield from self._named("sink-destinations", self._destinations())
        if sinks:
            yield from self._named("sink", self._sink.check(self.pipeline.sink))

    def _named(self, check: str, findings: Iterator[Finding] | list[Finding]) -> Iterator[Finding]:
        for finding in findings:
            subject = f"{self.name}: {finding.subject}" if finding.subject else self.name
            yield replace(finding, check=check, subject=subject)

    def _patterns(self) -> Iterator[Finding]:
        names = [
            (table.relation.namespace, table.relation.name) for table in self._source.published
        ]
        for pattern in self.pipeline.tables:
            if not any(Tables((pattern.removeprefix("!"),)).match(*name) for name in names):
                yield warning(
                    f"{pattern} matches no published table",
                    "ALTER PUBLICATION ... ADD TABLE ...; or correct the pattern",
                )

    def _table(self, expressions: Expressions, table: Published) -> Iterator[Finding]:
        relation, subject = table.relation, str(_name(table))
        try:
            made = compiled(expressions, relation, {})
            if self._ask is not None and expressions:
                self._note(self._ask(expressions, relation), subject)
        except TailraceError as refusal:
            yield from self._named("expression", [error(str(refusal), refusal.hint, subject)])
            return
        for expression in expressions.all():
            yield from self._named("expression-unchanged", self._unchanged(expression, table))
        for single in expressions.singles():
            yield from self._named("expression-old-row", self._old_row(single, relation))
        kind = self.types.get(subject, {}).get("route", "string")
        if kind != "string":
            said = warning(f"route is of type {kind}", "Convert it: cast(... as string)", subject)
            yield from self._named("route-type", [said])
        keyed = [column.name for column in relation.columns if column.key]
        yield from self._named("lanes-key", self._lanes(relation, keyed))
        yield from self._named("lanes-key", self._unknown_lane(relation, keyed))
        if made.select is not None and not self.pipeline.key:
            kept = {item.column.name for item in made.select if item.column.key}
            yield from self._named("select-key", self._left_out(relation, keyed, kept))

    def _note(self, kinds: Types, subject: str) -> None:
        names = ("where", "route", "key", "group", "payload")
        named = {name: kind for name in names if (kind := getattr(kinds, name)) is not None}
        items = {f"select[{index}]": kind for index, kind in enumerate(kinds.select or ())}
        self.types[subject] = named | items

    def _unchanged(self, expression: Expression, table: Published) -> Iterator[Finding]:
        """Values that an update may not send."""
        relation = table.relation
        if relation.replica_identity is ReplicaIdentity.FULL or not self._source.publishes(
            "update"
        ):
            return
        selects = expression.text.place.rpartition(".")[2].startswith("select")
        read = _columns(
            Row(expression.text, relation, self._lookups), expression, ("", "row", "after")
        )
        if selects and len(read) < 2:
            return
        large = [relation.columns[index].name for index in sorted(read)]
        large = [name for name in large if cells.toastable(_column(relation, name))]
        if large:
            say = warning if table.toasted else info
            yield say(
                f"{expression.text.place} reads {', '.join(large)}: an update does not send large "
                "values that it leaves unchanged, and the pipeline then stops",
                f"ALTER TABLE {_name(table).quoted} REPLICA IDENTITY FULL; "
                "or guard it with is_unchanged()",
                str(_name(table)),
            )

    def _old_row(self, expression: Expression, relation: Relation) -> Iterator[Finding]:
        """Values that are not part of the old key."""
        if relation.replica_identity is ReplicaIdentity.FULL:
            return
        places = [
            place
            for place, when in (
                ("before", ("update", "delete")),
                ("", ("delete",)),
                ("row", ("delete",)),
            )
            if any(self._source.publishes(operation) for operation in when)
        ]
        read = _columns(Row(expression.text, relation, self._lookups), expression, tuple(places))
        names = [
            relation.columns[index].name
            for index in sorted(read)
            if not relation.columns[index].key
        ]
        if names:
            aware = any(
                Row(expression.text, relation, self._lookups).column(reference) is None
                and reference.name.lower() == "op"
                for reference in expression.references
            )
            table = TableName(relation.namespace, relation.name)
            yield (info if aware else warning)(
                f"{expression.text.place} reads {', '.join(names)} of the old row, but PostgreSQL "
                "sends only its key: the pipeline then stops",
                f"ALTER TABLE {table.quoted} REPLICA IDENTITY FULL; or guard it with is_absent() "
                "or a test of op",
                str(table),
            )

    def _lanes(self, relation: Relation, keyed: list[str]) -> Iterator[Finding]:
        chosen = self.pipeline.group or self.pipeline.key
        if self.pipeline.lanes > 1 and not keyed and not chosen:
            yield warning(
                f"{self.pipeline.lanes} lanes keep the order per key, but this table has no key",
                "lanes: 1, a `key`, or a primary key",
                relation.qualified_name,
            )

    def _unknown_lane(self, relation: Relation, keyed: list[str]) -> Iterator[Finding]:
        key = "" if self.pipeline.group else self.pipeline.key
        full = relation.replica_identity is ReplicaIdentity.FULL
        # Without a replica identity PostgreSQL refuses updates and deletes itself.
        if self.pipeline.lanes > 1 and key and keyed and not full and key not in keyed:
            yield warning(
                f"key {key} is not in the replica identity: with {self.pipeline.lanes} lanes, the "
                "pipeline stops at the first update or delete",
                f"ALTER TABLE {relation.qualified_name} REPLICA IDENTITY FULL, or lanes: 1",
                relation.qualified_name,
            )

    def _left_out(self, relation: Relation, keyed: list[str], kept: set[str]) -> Iterator[Finding]:
        if relation.replica_identity is not ReplicaIdentity.FULL and len(kept) < len(keyed):
            yield warning(
                f"select omits the key ({', '.join(keyed)}), so messages have no key",
                "Select the key columns, or set `key`.",
                relation.qualified_name,
            )

    def _destinations(self) -> Iterator[Finding]:
        """Whether the sink takes every destination that the template can give."""
        if self.pipeline.route:
            return
        sink = self.pipeline.sink
        template = self._sink.destination(sink.template, database=self._source.database)
        destinations = [template.of(table.relation, op) for table in self.tables for op in _OPS]
        yield from self._sink.check_destinations(sink, destinations)


def _columns(names: Row, expression: Expression, qualifiers: tuple[str, ...]) -> set[int]:
    """The columns that an expression reads under these qualifiers without testing them."""
    tested = {names.column(reference) for reference in expression.guarded}
    read = {
        names.column(reference)
        for reference in expression.references
        if reference.qualifier in qualifiers
    }
    return {index for index in read - tested if index is not None}


def _column(relation: Relation, name: str) -> Column:
    return next(column for column in relation.columns if column.name == name)


def _name(table: Published) -> TableName:
    return TableName(table.relation.namespace, table.relation.name)
