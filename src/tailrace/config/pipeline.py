"""The section of a pipeline in `tailrace.yml`, with its snapshots and backfills."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializeAsAny,
    model_validator,
)

from tailrace.encode.creek.names import LayoutName, StreamLayout
from tailrace.encode.shapes.registry import SHAPES
from tailrace.encode.shapes.shape_type import Encoding  # noqa: TC001 - pydantic reads it
from tailrace.errors import ConfigError
from tailrace.jetstream.settings import JetStreamSettings, NatsStream
from tailrace.postgres.condition import checked
from tailrace.settings import Bytes, Section
from tailrace.sinks.registry import SINKS
from tailrace.sinks.retry import Retry
from tailrace.sinks.sink_type import SinkSettings  # noqa: TC001 - pydantic reads it

if TYPE_CHECKING:
    from tailrace.registry import Registry


class Snapshots(Section):
    """Snapshots of the pipeline's tables on request, into their own stream."""

    request: str = Field(
        default="snapshot.request",
        description="Prefix of the request subject: a message on PREFIX.TABLE requests a snapshot.",
    )
    stream: NatsStream = Field(
        default=NatsStream(name="INIT", subjects=("init.>",), max_age_hours=168.0),
        description="The stream for snapshots, on the pipeline's NATS server.",
    )
    chunk_rows: int = Field(default=10_000, ge=1, description="Max rows per message.")
    compression: Literal["none", "zstd"] = Field(
        default="none",
        description="`zstd`: chunks are compressed with a dictionary trained on rows of the table.",
    )
    parallel: int = Field(
        default=2, ge=1, le=64, description="Ranges of a table that are read in parallel."
    )
    stretch_bytes: Bytes = Field(
        default=128 * 2**20, ge=8192, description="Bytes of a table per range."
    )


def _condition(text: str) -> str:
    try:
        checked(text)
    except ConfigError as error:
        raise ValueError(f"{error}. {error.hint}") from error
    return text


class Enrichment(Section):
    """Rows of a query at the source, by a column of the changed table."""

    query: str = Field(
        min_length=1,
        description=(
            "SELECT with the values of `key` as $1: SELECT id, name FROM customers WHERE id = "
            "ANY($1). Its first column is the key; one row per key."
        ),
    )
    key: str = Field(min_length=1, description="Column of the changed table.")
    cache_s: float = Field(
        default=1.0, ge=0, description="For so many seconds a row is not looked up again."
    )
    cache_rows: int = Field(default=100_000, ge=1, description="Max rows to keep.")
    timeout_s: float = Field(default=10.0, gt=0, description="Max seconds of a query.")


class Backfill(Section):
    """One backfill: the rows of a table, sent once through the pipeline."""

    table: str = Field(description="Table name, as in SQL.")
    where: Annotated[str, AfterValidator(_condition)] = Field(
        default="",
        description="Condition on the table's columns, evaluated by PostgreSQL. Empty: all rows.",
    )
    rate: float = Field(default=0.0, ge=0, description="Max rows per second. 0: no limit.")


class Backfills(Section):
    """How existing rows of tables are sent through the pipeline."""

    tables: tuple[Backfill, ...] = Field(
        default=(), description="Tables to backfill once, when the pipeline runs first."
    )
    page_seconds: float = Field(
        default=1.0, gt=0, description="Target seconds per page; the number of rows adapts to it."
    )
    page_rows: int = Field(default=200_000, ge=100, description="Max rows per page.")
    statement_timeout_s: int = Field(
        default=3600,
        ge=1,
        le=2_000_000,
        description="Max seconds of a query on the source: of a page, or of a table without a key.",
    )


_QUALIFIERS = frozenset({"before", "after", "row", "change"})
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,127}")
"""Names that HTTP, NATS, Kafka and AMQP accept."""


def _headers(values: dict[str, str]) -> dict[str, str]:
    for name in values:
        if _HEADER.fullmatch(name) is None:
            raise ValueError(f"{name!r} is not a valid name of a header")
    return values


def _lookups(values: dict[str, Enrichment]) -> dict[str, Enrichment]:
    for name in values:
        if re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name) is None or name in _QUALIFIERS:
            raise ValueError(
                f"{name!r} cannot name a lookup: use lower-case letters, digits and _, and none of "
                f"{', '.join(sorted(_QUALIFIERS))}"
            )
    return values


T = TypeVar("T")


def _registered(registry: Registry[T], name: str) -> T:
    try:
        return registry.find(name)
    except ConfigError as error:
        # A ValueError gets its place in the file from pydantic.
        raise ValueError(f"{error}. {error.hint}") from error


def _known_shape(name: str) -> str:
    return _registered(SHAPES, name).name


def _typed_sink(value: object) -> object:
    """The settings of a sink as the model of its kind, which the registry knows."""
    if not isinstance(value, Mapping):
        return value
    if not isinstance(kind := value.get("type"), str):
        raise ValueError(f"needs a `type`: {', '.join(SINKS.names())}")
    # Errors of the inner model keep their place: pydantic merges them into its own.
    return _registered(SINKS, kind).settings.model_validate(value)


class Pipeline(Section):
    """Tables in, messages out: one streaming query with its own checkpoint."""

    tables: tuple[str, ...] = Field(
        default=("*.*",),
        description="Tables as `schema.table`; wildcards: `*` and `?`. A leading `!` excludes.",
    )
    messages: tuple[str, ...] = Field(
        default=(),
        description="Prefixes of logical messages to deliver; wildcards: `*` and `?`. Empty: none.",
    )
    start: str = Field(
        default="earliest",
        description="Start position of a new pipeline: earliest, latest, an LSN or an ISO time.",
    )
    where: str = Field(
        default="",
        description="SQL condition over before.*, after.* and the change's fields. Empty: all.",
    )
    select: tuple[str, ...] = Field(
        default=(),
        description="SQL expressions, each with an optional `AS name`. Empty: all columns.",
    )
    route: str = Field(
        default="",
        description="SQL expression for the destination. Empty: the template of the sink.",
    )
    key: str = Field(
        default="",
        description="SQL expression for the message key. Empty: the row's replica identity.",
    )
    group: str = Field(
        default="",
        description=(
            "SQL expression over the row for what must stay in order, across tables: a message "
            "waits for earlier ones of its group. Empty or NULL: the key."
        ),
    )
    payload: str = Field(
        default="",
        description=(
            "SQL expression for the whole payload: a struct or map becomes JSON, a text or bytes "
            "stay as they are. Empty or NULL: the payload of the shape."
        ),
    )
    headers: Annotated[dict[str, str], AfterValidator(_headers)] = Field(
        default={},
        description=(
            "Headers of each message: name and SQL expression for the value. NULL: no such header."
        ),
    )
    enrich: Annotated[dict[str, Enrichment], AfterValidator(_lookups)] = Field(
        default={},
        description="Lookups by name: SQL expressions read their columns as NAME.column.",
    )
    lanes: int = Field(
        default=1,
        ge=1,
        le=256,
        description="Parallel deliveries. One keeps the total order, several the order per key.",
    )
    shape: Annotated[str, AfterValidator(_known_shape)] = Field(
        default="bridge",
        description=f"Layout of a message: {', '.join(SHAPES.built_in)}.",
    )
    encoding: Encoding | None = Field(
        default=None,
        description="Encoding of a message. Empty: the default of the shape.",
    )
    namespace: str = Field(
        default="CREEK",
        pattern=r"^[^\s.*>$%/\\]+$",
        description="With shape creek: prefix of the subjects for schemas and requests.",
    )
    layout: LayoutName = Field(
        default="namespace",
        description=(
            "With shape creek: the names of streams and subjects. `namespace`: all databases share "
            "NS_wal; `database`: NS_wal_DATABASE, for Creek's clients of 2025."
        ),
    )
    batch_rows: int = Field(
        default=500_000,
        ge=1,
        description="Max changes per micro-batch, rounded up to a whole entry.",
    )
    batch_bytes: Bytes = Field(
        default=128 * 2**20,
        ge=1,
        description="Max bytes of log per closed micro-batch, rounded up to a whole entry.",
    )
    max_open_s: float = Field(
        default=45.0,
        ge=0,
        le=120,
        description=(
            "Near the end of the log, and without SQL stages into NATS everywhere, a micro-batch "
            "stays open for so many seconds and delivers changes as they come. 0: every batch is "
            "closed, which adds a tenth of a second. "
            "Pipelines with several lanes always have closed batches."
        ),
    )
    order: Literal["key", "none"] = Field(
        default="key",
        description=(
            "`key`: messages of a key stay in order, also when one of them is not accepted. "
            "`none`: a message that is not accepted holds back no other."
        ),
    )
    park: Literal["key", "message", "never"] | None = Field(
        default=None,
        description=(
            "What happens to a message that the sink does not accept: `key` parks it and later "
            "messages of its key, `message` parks it alone, `never` stops the pipeline. Empty: "
            "`key`, or `never` where transactions are delivered as a whole."
        ),
    )
    retry: Retry = Field(default=Retry(), description=Retry.__doc__)
    snapshots: Snapshots | None = Field(
        default=None, description="Snapshots on request. Not set: no snapshots."
    )
    schema_changes: Literal["flag", "backfill", "ignore"] = Field(
        default="flag",
        description=(
            "Schema changes without row events (types, defaults, partitions, TRUNCATE): `flag` "
            "reports them, `backfill` also sends the rows again, `ignore` does neither."
        ),
    )
    backfill: Backfills = Field(default=Backfills(), description=Backfills.__doc__)
    sink: Annotated[SerializeAsAny[SinkSettings], BeforeValidator(_typed_sink)] = Field(
        description=f"Where the messages go. `type`: {', '.join(SINKS.built_in)}."
    )

    @property
    def jetstream(self) -> JetStreamSettings:
        """The NATS server and stream of a pipeline whose shape or snapshots need one."""
        assert isinstance(self.sink, JetStreamSettings)
        return self.sink

    @property
    def creek_layout(self) -> StreamLayout:
        """With shape creek: the names of streams, subjects and requests."""
        return StreamLayout.of_stream(self.namespace, self.layout, self.jetstream.stream.name)

    @property
    def has_expressions(self) -> bool:
        """Whether its changes pass through Spark SQL."""
        return any(
            (
                *(self.where, self.select, self.route, self.key, self.group),
                *(self.payload, self.headers),
            )
        )

    @property
    def format(self) -> Encoding:
        """The encoding, chosen by the shape where none is given."""
        return self.encoding or SHAPES.find(self.shape).encodings[0]

    @property
    def parks(self) -> Literal["key", "message", "never"]:
        """What happens to a message that the sink does not accept."""
        if self.park is None:
            return "key" if SINKS.find(self.sink.type).parks(self.sink) else "never"
        return self.park

    @property
    def blocks(self) -> bool:
        """Whether a parked message holds back later ones of its key."""
        return self.parks == "key" and self.order == "key"

    @model_validator(mode="after")
    def _parking_fits(self) -> Self:
        sink = SINKS.find(self.sink.type)
        if self.park in (None, "never") or sink.may_park(self.sink):
            return self
        if sink.records:
            raise ValueError(f"the sink {sink.name} stops topics instead of parking: remove `park`")
        raise ValueError(
            "`park` would deliver a transaction without its parked messages: use `park: never`, or "
            "deliver messages one by one"
        )

    @model_validator(mode="after")
    def _shape_fits(self) -> Self:
        shape, sink = SHAPES.find(self.shape), SINKS.find(self.sink.type)
        if bool(shape.records) != sink.records:
            raise ValueError(f"shape {shape.name} and sink {sink.name} do not fit each other")
        if not shape.stages and (self.has_expressions or self.lanes > 1):
            raise ValueError(
                f"shape {shape.name} delivers whole rows in one lane: remove `lanes` and all SQL "
                "expressions"
            )
        if self.encoding is not None and self.encoding not in shape.encodings:
            raise ValueError(
                f"shape {shape.name} has no encoding {self.encoding}: use "
                f"{' or '.join(shape.encodings)}, or leave `encoding` out"
            )
        if self.headers and (reason := sink.header_misfit(self.sink, tuple(self.headers))):
            raise ValueError(reason)
        if self.group and (reason := sink.group_misfit(self.sink)):
            raise ValueError(reason)
        if reason := sink.misfit(self.sink, shape=shape.name, encoding=self.format):
            raise ValueError(reason)
        if shape.whole_rows and (self.messages or self.select or self.payload):
            raise ValueError(
                f"shape {shape.name} delivers whole rows: remove `messages`, `select` and `payload`"
            )
        return self

    @model_validator(mode="after")
    def _lookups_are_read(self) -> Self:
        if self.enrich and not self.has_expressions:
            raise ValueError("`enrich` has no effect without an SQL expression that reads it")
        return self

    @model_validator(mode="after")
    def _jetstream_fits(self) -> Self:
        shape = SHAPES.find(self.shape)
        if (shape.jetstream or self.snapshots) and not isinstance(self.sink, JetStreamSettings):
            raise ValueError(
                f"shape {shape.name} needs a sink on NATS JetStream"
                if shape.jetstream
                else "`snapshots` need a sink on NATS JetStream"
            )
        if self.snapshots and (self.where or self.select):
            raise ValueError(
                "`snapshots` deliver whole rows to anybody who may request them, also what `where` "
                "and `select` leave out: remove one of them, and use backfills"
            )
        if shape.jetstream:
            names = self.creek_layout
            if self.snapshots:
                names.check_snapshots(self.snapshots.request, self.snapshots.stream.name)
        return self
