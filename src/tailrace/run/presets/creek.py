"""The Creek preset: PostgreSQL to NATS JetStream as Avro, from a few variables to a settings file.

`tailrace creek` writes its settings to `DATA/creek.yml`. Both URIs may hold passwords, so the file
refers to the environment for them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from tailrace.creek.sql import install, installed
from tailrace.encode.creek.names import StreamLayout
from tailrace.errors import ConfigError, PostgresError, PostgresRefusedError, TailraceError
from tailrace.postgres.bootstrap import initialise, log_exists
from tailrace.postgres.connection import connect, database_name, lacks_privilege
from tailrace.postgres.names import TableName, quote_literal
from tailrace.postgres.publication import read_publication
from tailrace.run.presets import preset
from tailrace.run.presets.options import duration_s
from tailrace.run.presets.preset import http_section, literal
from tailrace.sinks.nats.sink_type import SINK as NATS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from psycopg import Connection

    from tailrace.config import Config
    from tailrace.encode.creek.names import Kind
    from tailrace.postgres.bootstrap import Initialised
    from tailrace.run.presets.options import CreekOptions

T = TypeVar("T")

FILE = "creek.yml"
NAME = "creek"
_NAME = r'(?:"(?:[^"]|"")+"|[^\s,"]+)+'
_LATER_START_TIMEOUT_S = 2


def settings(options: CreekOptions) -> dict[str, Any]:
    """The content of the settings file."""
    data = options.folder
    namespace = literal(options.namespace)
    names = StreamLayout.of(namespace, options.layout, literal(_database(options)))
    limits = {"max_age_hours": duration_s(options.max_age) / 3600, "replicas": options.replicas}
    wal_limits = {"max_bytes": options.max_bytes, "max_messages": options.max_messages}
    return {
        "source": {
            "dsn": "${PG_URI}",
            "slot": literal(options.slot),
            "publication": literal(options.publication),
        },
        "log": {"path": literal(str(data / "log"))},
        "data": literal(str(data)),
        "capture": {"progress_s": duration_s(options.message_timeout)},
        "http": http_section(
            host=options.host, port=options.port, hosts=options.hosts, insecure=options.insecure
        ),
        "pipelines": {
            NAME: {
                # A publication FOR ALL TABLES includes the tables of `_creek`.
                "tables": ["*.*", "!_creek.*"],
                "shape": "creek",
                "encoding": options.encoding,
                "namespace": namespace,
                "layout": options.layout,
                "snapshots": {
                    "request": names.snapshot_request,
                    "stream": _stream(names, "snap") | limits,
                },
                "sink": {
                    "type": NATS.name,
                    "url": "${NATS_URI}",
                    "stream": _stream(names, "wal") | limits | wal_limits,
                    "subject": names.template("wal"),
                    "max_outstanding": options.max_pending,
                    "timeout_s": duration_s(options.nats_timeout),
                },
            }
        },
    }


def _database(options: CreekOptions) -> str:
    """The database in the names of streams; empty if names do not depend on it."""
    if options.layout == "namespace":
        return ""
    database = database_name(options.pg_uri.get_secret_value())
    if not database:
        raise ConfigError(
            "PG_URI does not name a database, and with layout database the streams are named by it",
            hint="Set PG_URI or --pg-uri: postgres://user:password@host:5432/database",
        )
    return database


def _stream(names: StreamLayout, kind: Kind) -> dict[str, Any]:
    return {"name": names.stream(kind), "subjects": [names.stream_subjects(kind)]}


def write(options: CreekOptions) -> Path:
    """Write the settings file into the data folder."""
    return preset.write(settings(options), options.folder / FILE, command=NAME)


def tables_of(text: str) -> list[TableName]:
    """The tables in PG_TABLES, separated by blanks or commas.

    >>> [str(table) for table in tables_of('public.a, sales."Order Items" b')]
    ['public.a', 'sales.Order Items', 'public.b']
    """
    return [TableName.parse(name) for name in re.findall(_NAME, text)]


def prepare(config: Config, tables: Sequence[TableName]) -> Initialised | None:
    """Create `_creek`, the publication and the slot at the first start, in this order.

    If there is a log, capture checks that slot and log fit. The publication has its own tables by
    then: PG_TABLES is only compared with it.
    """
    dsn = config.source.dsn.get_secret_value()
    if log_exists(config.log.path):
        try:
            with connect(dsn, connect_timeout_s=_LATER_START_TIMEOUT_S) as connection:
                _compare(connection, config, tables)
        except PostgresError as error:
            structlog.get_logger().warning(
                "creek.tables_not_compared", code=error.code, reason=str(error)
            )
        return None
    with connect(dsn, connect_timeout_s=config.capture.connect_timeout_s) as connection:
        if not installed(connection):
            _with_privilege(lambda: install(connection), connection)
        if read_publication(connection, config.source.publication) is not None:
            _compare(connection, config, tables)
            return initialise(connection, config)
        if not tables:
            raise ConfigError(
                f"there is no publication {config.source.publication!r}, and PG_TABLES is empty",
                hint='Name its tables: PG_TABLES="public.orders public.customers"',
            )
        return _with_privilege(lambda: initialise(connection, config, tables=tables), connection)


def _compare(connection: Connection, config: Config, tables: Sequence[TableName]) -> None:
    """Log which of the tables are not published. They may have been removed on purpose."""
    publication = read_publication(connection, config.source.publication)
    published = {each.table for each in publication.tables} if publication else set()
    for table in tables:
        if table not in published:
            values = quote_literal(config.source.publication), quote_literal(table.quoted)
            structlog.get_logger().warning(
                "creek.table_not_published",
                table=str(table),
                fix=f"SELECT _creek.add_table({values[0]}, {values[1]});",
            )


def _with_privilege(action: Callable[[], T], connection: Connection) -> T:
    """Run an action. If the role lacks a privilege, the hint is the command for a DBA."""
    try:
        return action()
    except TailraceError as error:
        if not lacks_privilege(error):
            raise
        role = connection.info.user
        raise PostgresRefusedError(
            f"{role} lacks a privilege to prepare the database: {error}",
            hint="A DBA runs once: tailrace init --creek --dsn <as the owner of the tables> "
            f"--role {role} --table ...; with --print-sql it prints the script.",
        ) from error
