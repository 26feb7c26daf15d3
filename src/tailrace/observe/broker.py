"""The figures of the broker's topics and consumer groups, as its tables in PostgreSQL have them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - get_type_hints reads the annotations
from typing import Annotated, ClassVar

from tailrace.observe.figure import Figure, Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFigures(Figures):
    """Figures that are read from tables when a page asks: `/status` does not have them."""

    SHOWN_AT: ClassVar = "/api/v1/broker"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFigures(TableFigures):
    """A partition of a topic."""

    partition: Annotated[int, Figure("Number of the partition.")]
    first_offset: Annotated[int, Figure("Offset of the first record that is kept.")]
    end_offset: Annotated[int, Figure("Offset of the next record.")]
    records: Annotated[int, Figure("Records that are kept.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFigures(TableFigures):
    """A topic."""

    name: Annotated[str, Figure("Name of the topic.")]
    table: Annotated[str, Figure("Table with its records.")]
    copied: Annotated[bool, Figure("Whether `tailrace shadow` copies it to Kafka, if it runs.")]
    records: Annotated[int, Figure("Records that the topic keeps, in all partitions.")]
    partitions: Annotated[tuple[PartitionFigures, ...], Figure("Partitions of the topic.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFigures(TableFigures):
    """A member of a consumer group."""

    id: str
    instance: str = ""
    client: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedFigures(TableFigures):
    """The offset that a group has committed for a partition."""

    topic: str
    partition: int
    committed_offset: Annotated[int, Figure("Offset that the group reads next.")]
    end_offset: Annotated[int, Figure("Offset of the next record of the partition.")]
    lag: Annotated[int, Figure("Records of the partition from the committed offset on.")]
    committed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures(TableFigures):
    """A consumer group."""

    name: Annotated[str, Figure("Name of the group.")]
    state: Annotated[str, Figure("State, with Kafka's names: Empty, Stable, PreparingRebalance …")]
    generation: int | None
    members: Annotated[tuple[MemberFigures, ...], Figure("Members of the group.")]
    lag: Annotated[int, Figure("Lag of the group, the sum of all partitions.")]
    offsets: Annotated[
        tuple[CommittedFigures, ...], Figure("Partitions that the group has committed offsets of.")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFigures(TableFigures):
    """A table of records."""

    name: str
    bytes: Annotated[int, Figure("Size of the table on disk, with its index.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFigures(TableFigures):
    """The broker that serves the database, as its session shows it."""

    address: Annotated[str, Figure("Address that the broker connects from.")]
    pid: Annotated[int, Figure("Process of PostgreSQL that serves its session.")]
    since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFigures(TableFigures):
    """Everything that the tables show."""

    serving: ServingFigures | None
    stores: tuple[StoreFigures, ...]
    topics: tuple[TopicFigures, ...]
    groups: tuple[GroupFigures, ...]
    complete: Annotated[bool, Figure("Whether all partitions and offsets are listed.")]
