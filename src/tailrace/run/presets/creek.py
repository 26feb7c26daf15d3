"""The Creek preset: PostgreSQL to NATS JetStream as Avro, from a few variables to a settings file.

`tailrace creek` writes the settings it stands for to `DATA/creek.yml`. Both URIs may hold
passwords, so the file refers to the environment for them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from psycopg import errors

from tailrace.creek.sql import install, installed
from tailrace.encode.creek import schema as creek
from tailrace.errors import ConfigError, PostgresError, PostgresRefusedError, TailraceError
from tailrace.postgres.bootstrap import initialise, log_exists
from tailrace.postgres.connection import connect, quote_literal
from tailrace.postgres.publication import TableName, read_publication
from tailrace.run.presets import preset
from tailrace.run.presets.preset import literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from psycopg import Connection

    from tailrace.config import Config
    from tailrace.postgres.bootstrap import Initialised

T = TypeVar("T")

FILE = "creek.yml"
NAME = "creek"
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
_PART = r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"
_NAME = r'(?:"(?:[^"]|"")+"|[^\s,"]+)+'
_LATER_S = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `tailrace creek` is told; durations in seconds, 0 for no limit."""

    publication: str
    slot: str
    namespace: str
    message_timeout_s: float
    nats_timeout_s: float
    max_pending: int
    replicas: int
    max_age_s: float
    max_bytes: int
    max_messages: int
    host: str
    port: int


def settings(options: Options, data: Path) -> dict[str, Any]:
    """The content of the settings file."""
    namespace = literal(options.namespace)
    copies = {"max_age_hours": options.max_age_s / 3600, "replicas": options.replicas}
    wal = {"max_bytes": options.max_bytes, "max_messages": options.max_messages}
    return {
        "source": {
            "dsn": "${PG_URI}",
            "slot": literal(options.slot),
            "publication": literal(options.publication),
        },
        "log": {"path": literal(str(data / "log"))},
        "data": literal(str(data)),
        "capture": {"progress_s": options.message_timeout_s},
        "http": {"host": literal(options.host), "port": options.port},
        "pipelines": {
            NAME: {
                # A publication for all tables has our own as well.
                "tables": ["*.*", "!_creek.*"],
                "shape": "creek",
                "namespace": namespace,
                "snapshots": {
                    "request": f"{namespace}._snapshot",
                    "stream": _stream(namespace, "snap") | copies,
                },
                "sink": {
                    "type": "nats",
                    "url": "${NATS_URI}",
                    "stream": _stream(namespace, "wal") | copies | wal,
                    "subject": f"{namespace}.{{database}}.wal.{{schema}}.{{table}}",
                    "max_outstanding": options.max_pending,
                    "timeout_s": options.nats_timeout_s,
                },
            }
        },
    }


def _stream(namespace: str, kind: str) -> dict[str, Any]:
    return {"name": creek.stream(namespace, kind), "subjects": [f"{namespace}.*.{kind}.>"]}


def write(options: Options, data: Path) -> Path:
    """Write the settings file into the data folder."""
    return preset.write(settings(options, data), data / FILE, command=NAME)


def duration_s(text: str, name: str, *, least: float = 0.0) -> float:
    """A duration as Go writes it, in seconds; `name` is the variable it comes from.

    >>> duration_s("1h30m", "x"), duration_s("1.5s", "x"), duration_s("0", "x")
    (5400.0, 1.5, 0.0)
    """
    valid = text == "0" or re.fullmatch(f"(?:{_PART})+", text) is not None
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(_PART, text))
    if not valid or seconds < least:
        raise ConfigError(
            f"{name} should be a duration{' above 0' if least else ''}, and {text!r} is none",
            hint="Write numbers with units: 10s, 1m30s, 168h, 500ms.",
        )
    return float(seconds)


def tables_of(text: str) -> list[TableName]:
    """The tables that PG_TABLES names, with blanks or commas between.

    >>> [str(table) for table in tables_of('public.a, sales."Order Items" b')]
    ['public.a', 'sales.Order Items', 'public.b']
    """
    return [TableName.parse(name) for name in re.findall(_NAME, text)]


def prepare(config: Config, tables: Sequence[TableName]) -> Initialised | None:
    """At the first start, make `_creek`, the publication and the slot, in this order.

    Where a log is, capture itself checks that slot and log fit, and the tables are those that the
    publication has by now: PG_TABLES is only compared.
    """
    dsn = config.source.dsn.get_secret_value()
    if log_exists(config.log.path):
        try:
            with connect(dsn, connect_timeout_s=_LATER_S) as connection:
                _compare(connection, config, tables)
        except PostgresError as error:
            structlog.get_logger().warning(
                "creek.tables_not_compared", code=error.code, reason=str(error)
            )
        return None
    with connect(dsn, connect_timeout_s=config.capture.connect_timeout_s) as connection:
        if not installed(connection):
            _permitted(lambda: install(connection), connection)
        if read_publication(connection, config.source.publication) is not None:
            _compare(connection, config, tables)
            return initialise(connection, config)
        if not tables:
            raise ConfigError(
                f"there is no publication {config.source.publication!r}, and PG_TABLES is empty",
                hint='Name the tables it shall have: PG_TABLES="public.orders public.customers"',
            )
        return _permitted(lambda: initialise(connection, config, tables=tables), connection)


def _compare(connection: Connection, config: Config, tables: Sequence[TableName]) -> None:
    """Say which of the tables are not published. They may have been removed on purpose."""
    publication = read_publication(connection, config.source.publication)
    held = {each.table for each in publication.tables} if publication else set()
    for table in tables:
        if table not in held:
            values = quote_literal(config.source.publication), quote_literal(table.quoted)
            structlog.get_logger().warning(
                "creek.table_not_published",
                table=str(table),
                fix=f"SELECT _creek.add_table({values[0]}, {values[1]});",
            )


def _permitted(act: Callable[[], T], connection: Connection) -> T:
    """Do what takes rights; without them, say who has to do it."""
    try:
        return act()
    except TailraceError as error:
        if not isinstance(error.__cause__, errors.InsufficientPrivilege):
            raise
        role = connection.info.user
        raise PostgresRefusedError(
            f"{role} may not prepare the database: {error}",
            hint="Let a DBA do it once: tailrace init --creek --dsn <as the owner of the tables> "
            f"--role {role} --table ...; or with --print-sql, for the script.",
        ) from error
