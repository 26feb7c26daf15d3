"""`tailrace creek`: PostgreSQL to NATS JetStream as Avro, for the clients of Creek.

A preset of `tailrace run`: `tailrace.run.presets.creek` has its settings, `…options` its options.
"""

# ruff: noqa: PLC0415 - psycopg is loaded when the command runs, not for --help

from __future__ import annotations

import os
from functools import partial

from tailrace import private
from tailrace.cli.model_options import with_options
from tailrace.cli.preset import launch
from tailrace.errors import ConfigError
from tailrace.run.presets.options import CreekOptions


@with_options(CreekOptions)
def creek(options: CreekOptions) -> None:
    """Stream the tables of a publication to NATS JetStream as Avro, for the clients of Creek.

    Every INSERT, UPDATE, DELETE and TRUNCATE becomes a message on NS.DATABASE.wal.SCHEMA.TABLE,
    where NS is the namespace. A request on NS._schema returns the schema of a message, the newest
    schema of a table is on NS.DATABASE.schema.SCHEMA.TABLE, and a request on NS._snapshot publishes
    all rows of a table. The first start creates the publication, the schema `_creek` and the slot.
    After that no change is lost, whatever fails. Creek's clients of 2025 need --layout database,
    with other names: NS_wal_DATABASE.SCHEMA.TABLE, NS_schema_DATABASE, NS_snap_DATABASE.

    Durations are as in Go: 500ms, 30s, 1h30m.

    \b
    Add and remove tables without a restart, by SQL in the same database:
      SELECT _creek.add_table('creek', 'sales.orders');
      SELECT _creek.remove_table('creek', 'sales.orders');

    \b
    A role that may not create these objects (the owner of the tables may) needs a DBA, once:
      tailrace init --creek --publication creek --slot creek --table sales.orders --print-sql

    \b
    Examples:
      PG_URI=postgres://creek:...@db/shop PG_TABLES="public.orders public.customers" tailrace creek
      tailrace creek --namespace EU --port 7780 --data /var/lib/tailrace/eu
      curl localhost:7779/metrics
    """
    from tailrace.observe import logs
    from tailrace.run.presets.creek import prepare, tables_of, write

    os.environ["TAILRACE_LOG_LEVEL"] = options.level
    private.restrict_new_files()
    logs.configure()
    pg_uri = options.pg_uri.get_secret_value()
    if not pg_uri:
        raise ConfigError(
            "PG_URI is not set",
            hint="Set PG_URI or --pg-uri: postgres://user:password@host:5432/database",
        )
    tables = tables_of(options.tables)
    file = write(options)
    # The settings file refers to both, in this process and in its children.
    os.environ.update({"PG_URI": pg_uri, "NATS_URI": options.nats_uri})
    launch(file, partial(prepare, tables=tables))
