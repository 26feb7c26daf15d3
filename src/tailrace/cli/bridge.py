"""`tailrace bridge`: PostgreSQL to NATS JetStream with two options and a few variables.

A preset of `tailrace run`: `tailrace.run.presets.bridge` has its settings, `…options` its options.
"""

# ruff: noqa: PLC0415 - psycopg is loaded when the command runs, not for --help

from __future__ import annotations

import os

from tailrace import private
from tailrace.cli.model_options import with_options
from tailrace.cli.preset import launch
from tailrace.run.presets.options import BridgeOptions


@with_options(BridgeOptions)
def bridge(options: BridgeOptions) -> None:
    """Stream the tables of a publication to NATS JetStream, as a preset.

    Every INSERT, UPDATE, DELETE and TRUNCATE becomes a message on cdc.TABLE.OPERATION in the stream
    CDC. A request on snapshot.request.TABLE publishes all rows of a table in the stream INIT. Both
    streams are created if they are missing. The key-value bucket `schemas` has the columns of each
    table. The first start creates the slot. After that no change is lost, whatever fails.

    \b
    The database and NATS come from the environment:
      PG_HOST                   localhost
      PG_PORT                   5432
      PG_DB                     postgres
      POSTGRES_BRIDGE_USER      libpq's default
      POSTGRES_BRIDGE_PASSWORD  libpq's default (PGPASSWORD, the password file)
      NATS_HOST                 localhost
      NATS_PORT                 4222
      NATS_URL                  instead of host and port
      NATS_BRIDGE_USER, NATS_BRIDGE_PASSWORD

    \b
    Before the first start, a DBA runs:
      CREATE PUBLICATION my_pub FOR TABLE users, orders;
      CREATE USER bridge_reader WITH REPLICATION PASSWORD '...';

    \b
    Examples:
      tailrace bridge --slot my_slot --pub my_pub
      tailrace bridge --slot my_slot --pub my_pub --port 9091 --json
      tailrace bridge --slot my_slot --pub my_pub --host 0.0.0.0 --hosts bridge
      curl localhost:9090/status
      curl -X POST -H "Authorization: Bearer $(cat DATA/http.token)" localhost:9090/shutdown
    """
    from tailrace.observe import logs
    from tailrace.run.presets.bridge import prepare, secrets, settings, write

    private.restrict_new_files()
    logs.configure()
    file = write(settings(options, os.environ), options.folder)
    os.environ.update(secrets(os.environ))
    launch(file, prepare, metrics_lines=True)
