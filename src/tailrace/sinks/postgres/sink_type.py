"""What Tailrace knows about the sink `postgres`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace.finding import Finding, error
from tailrace.sinks.postgres.destination import TableTemplate, table_of
from tailrace.sinks.postgres.settings import PostgresSink
from tailrace.sinks.sink_type import Promises, SinkType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.sinks.contract import Lane, Sink

# ruff: noqa: PLC0415 - psycopg is loaded where a sink is opened


class PostgresType(SinkType[PostgresSink]):
    """Rows of another database: every change in one table, or tables that follow the source's."""

    name = "postgres"
    title = "PostgreSQL"
    settings = PostgresSink
    all_or_nothing = True
    promises = Promises(
        delivery="exactly once",
        order=(
            "the order of the changes; `tables`: a flush is one transaction, in which the last "
            "state of each key counts"
        ),
        duplicates=(
            "None. The position of a lane is in the transaction of its rows; after an "
            "interruption it is read back. A reset delivers again what the reset covers."
        ),
        largest_message="`max_message_bytes`, 5 MiB by default; a larger one is parked",
        batch="one transaction per flush",
    )

    def destination(self, template: str, *, database: str) -> TableTemplate:
        """Fills a template of tables."""
        return TableTemplate(template, database=database)

    def misfit(self, settings: PostgresSink, *, shape: str, encoding: str) -> str:
        """Rows of tables come from shape `plain`; JSON types need JSON."""
        if settings.mode == "tables" and (shape, encoding) != ("plain", "json"):
            return "sink postgres with `mode: tables` needs `shape: plain` and `encoding: json`"
        if settings.mode == "events" and settings.payload != "bytea" and encoding != "json":
            return (
                f"sink postgres with `payload: {settings.payload}` needs `encoding: json`: set it, "
                "or `payload: bytea`"
            )
        return ""

    def atomic(self, settings: PostgresSink) -> bool:
        """A flush is a transaction."""
        del settings
        return True

    def may_park(self, settings: PostgresSink) -> bool:
        """The others are stored in one transaction, which is still that of the position."""
        del settings
        return True

    def parks(self, settings: PostgresSink) -> bool:
        """Not by default with `tables`: readers expect states that the source had."""
        return settings.mode == "events"

    def stores_position(self, settings: PostgresSink) -> bool:
        """In each transaction."""
        del settings
        return True

    def open(self, settings: PostgresSink, lane: Lane) -> Sink:
        """A connection."""
        from tailrace.sinks.postgres.sink import Postgres

        return Postgres(settings, lane)

    def probe(self, settings: PostgresSink, *, name: str) -> None:
        """The database must accept a connection."""
        from tailrace.sinks.postgres.session import Session

        Session(settings, name=name).close()

    def check(self, settings: PostgresSink) -> Iterator[Finding]:
        """What the sink would create; whether it may."""
        from tailrace.sinks.postgres.checking import findings

        try:
            yield from findings(settings)
        except TailraceError as failed:
            yield error(str(failed), failed.hint)

    def check_destinations(
        self, settings: PostgresSink, destinations: Sequence[str]
    ) -> Iterator[Finding]:
        """Whether they are names of tables."""
        if settings.mode == "events":
            return
        for destination in dict.fromkeys(destinations):
            if table_of(destination.encode()) is None:
                yield error(
                    f"{destination} is not the name of a table",
                    "Correct `table` of the sink: schema.table, as in SQL.",
                )


SINK = PostgresType()
