"""The setup of a source: create publication and slot, or print the SQL for a DBA.

Publication first, then slot: changes older than the publication cannot be decoded. `init` never
creates a slot for an existing log: the new slot would start after the end of the log, and the
changes between them would be missing without a trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from tailrace.errors import PostgresRefusedError, SlotLostError
from tailrace.log.format import mark, segment
from tailrace.log.term import slot_name
from tailrace.postgres.connection import translate_error
from tailrace.postgres.names import TableName, quote_ident, quote_literal
from tailrace.postgres.publication import (
    PublicationState,
    create_publication,
    publication_sql,
    read_publication,
)
from tailrace.postgres.slot import FAILOVER_VERSION, PLUGIN, SlotState, create_slot, read_slot
from tailrace.postgres.slot_terms import check_not_taken_over, present_term, read_terms
from tailrace.postgres.table_state import read_all, read_named

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from psycopg import Connection

    from tailrace.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialised:
    """The publication and the slot, and whether `init` created them."""

    publication: PublicationState
    publication_created: bool
    slot: SlotState
    slot_created: bool


def log_exists(path: Path) -> bool:
    """Whether the folder holds a log: a segment or a durable mark."""
    return (path / mark.NAME).exists() or any(path.glob(f"*{segment.SUFFIX}"))


def initialise(
    connection: Connection,
    config: Config,
    *,
    tables: Sequence[TableName] = (),
    all_tables: bool = False,
    slot_timeout_s: float = 30,
) -> Initialised:
    """Create the publication and the slot if they are missing. Leaves existing ones unchanged."""
    try:
        return _initialise(connection, config, tables, all_tables, slot_timeout_s)
    except psycopg.Error as error:
        raise translate_error(connection, error) from error


def _initialise(
    connection: Connection,
    config: Config,
    tables: Sequence[TableName],
    all_tables: bool,
    slot_timeout_s: float,
) -> Initialised:
    source = config.source
    name = _refuse_a_higher_term(connection, config)
    slot = read_slot(connection, name)
    publication = read_publication(connection, source.publication)
    _refuse_a_gap(config, name, slot)
    _refuse_wal_level(connection)
    if publication is None:
        _refuse_an_old_slot(config, slot)
        _refuse_unidentified(connection, tables, all_tables)
        current = create_publication(
            connection, source.publication, tables=tables, all_tables=all_tables
        )
    else:
        _refuse_other_tables(publication, tables, all_tables)
        current = publication
    return Initialised(
        publication=current,
        publication_created=publication is None,
        slot=slot or create_slot(connection, name, timeout_s=slot_timeout_s),
        slot_created=slot is None,
    )


def _refuse_a_higher_term(connection: Connection, config: Config) -> str:
    """The slot of the log's term. Refuses one that another machine has taken over."""
    base, term = config.source.slot, present_term(config)
    terms = read_terms(connection, base)
    if log_exists(config.log.path):
        check_not_taken_over(terms, base=base, term=term)
    elif max(terms, default=term) > term:
        slot = terms[max(terms)]
        raise PostgresRefusedError(
            f"replication slot {slot.name!r} exists: another machine has taken over a log of this "
            "source",
            hint="To follow that machine, run: tailrace follow. To start over with a new log, drop "
            f"the slot first: SELECT pg_drop_replication_slot({quote_literal(slot.name)});",
        )
    return slot_name(base, term)


def _refuse_a_gap(config: Config, name: str, slot: SlotState | None) -> None:
    path = config.log.path
    if slot is None and log_exists(path):
        raise SlotLostError(f"replication slot {name!r} is missing, but a log exists in {path}")
    if slot is not None and slot.lost:
        raise SlotLostError(
            f"replication slot {name!r} is lost: "
            f"{slot.invalidation_reason or 'its WAL was removed'}"
        )


def allows_logical_decoding(wal_level: str, effective_wal_level: str | None) -> bool:
    """Whether logical slots can be used. From PostgreSQL 19 on, which has `effective_wal_level`,
    the first logical slot raises wal_level = replica by itself.

    >>> allows_logical_decoding("replica", None), allows_logical_decoding("replica", "replica")
    (False, True)
    """
    on_demand = wal_level == "replica" and effective_wal_level is not None
    return wal_level == "logical" or on_demand


def _refuse_wal_level(connection: Connection) -> None:
    query = "SELECT current_setting('wal_level'), current_setting('effective_wal_level', true)"
    row = connection.execute(query).fetchone()
    if row is not None and not allows_logical_decoding(*row):
        raise PostgresRefusedError(
            f"wal_level must be logical, got {row[0]}",
            hint="ALTER SYSTEM SET wal_level = logical; then restart PostgreSQL.",
        )


def _refuse_an_old_slot(config: Config, slot: SlotState | None) -> None:
    if slot is not None:
        raise PostgresRefusedError(
            f"replication slot {slot.name!r} exists, but publication "
            f"{config.source.publication!r} does not: a slot cannot read changes older than its "
            "publication",
            hint="If nothing was captured with this slot yet, drop it and run `tailrace init` "
            f"again: SELECT pg_drop_replication_slot({quote_literal(slot.name)});",
        )


def _refuse_unidentified(
    connection: Connection, tables: Sequence[TableName], all_tables: bool
) -> None:
    states = read_all(connection) if all_tables else read_named(connection, tables)
    existing = {state.table for state in states}
    if missing := [str(table) for table in tables if table not in existing]:
        raise PostgresRefusedError(
            f"unknown table: {', '.join(missing)}",
            hint="Write schema.table as in SQL: names with capitals or dots need double quotes.",
        )
    if unidentified := [name for state in states for name in state.unidentified]:
        commands = " ".join(f"ALTER TABLE {name} REPLICA IDENTITY FULL;" for name in unidentified)
        raise PostgresRefusedError(
            "tables without a primary key or replica identity refuse the application's own "
            f"UPDATE and DELETE once they are published: {', '.join(unidentified)}",
            hint=f"Add primary keys, or run: {commands}",
        )


def _refuse_other_tables(
    publication: PublicationState, tables: Sequence[TableName], all_tables: bool
) -> None:
    published = {entry.table for entry in publication.tables}
    name = quote_ident(publication.name)
    if missing := [table for table in tables if table not in published]:
        added = ", ".join(table.quoted for table in missing)
        raise PostgresRefusedError(
            f"publication {publication.name!r} already exists, without "
            f"{', '.join(str(table) for table in missing)}",
            hint=f"ALTER PUBLICATION {name} ADD TABLE {added};",
        )
    if all_tables and not publication.all_tables:
        raise PostgresRefusedError(
            f"publication {publication.name!r} already exists and is not FOR ALL TABLES",
            hint="Set source.publication to another name, or omit --all-tables.",
        )


def setup_sql(
    config: Config, *, tables: Sequence[TableName] = (), all_tables: bool = False, role: str
) -> str:
    """The script for a DBA: settings, role, grants, publication, slot. Needs no connection."""
    publication = publication_sql(config.source.publication, tables=tables, all_tables=all_tables)
    return _SCRIPT.format(
        role=quote_ident(role),
        role_literal=quote_literal(role),
        grants=_grants(tables, role) if tables else _GRANT_ALL.format(role=quote_literal(role)),
        publication=publication,
        slot=quote_literal(config.source.slot),
        plugin=PLUGIN,
        failover_version=FAILOVER_VERSION,
    )


def _grants(tables: Sequence[TableName], role: str) -> str:
    namespaces = sorted({table.namespace for table in tables})
    grants = [
        f"GRANT USAGE ON SCHEMA {quote_ident(name)} TO {quote_ident(role)};" for name in namespaces
    ]
    grants += [f"GRANT SELECT ON TABLE {table.quoted} TO {quote_ident(role)};" for table in tables]
    return "\n".join(grants)


_GRANT_ALL = """\
DO $$
DECLARE namespace text;
BEGIN
  FOR namespace IN
    SELECT DISTINCT schemaname FROM pg_tables
    WHERE schemaname NOT LIKE 'pg\\_%' AND schemaname <> 'information_schema'
  LOOP
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', namespace, {role});
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO %I', namespace, {role});
  END LOOP;
END $$;"""

_SCRIPT = """\
-- Prepares a PostgreSQL database for Tailrace. Run it in that database, as a superuser:
--   psql -v ON_ERROR_STOP=1 -d <database> -f setup.sql

-- 1. Settings. A new wal_level needs a restart of the server; do that before steps 4 and 5.
--    On a managed service, set the same in its parameter group.
ALTER SYSTEM SET wal_level = logical;
-- While capture is stopped, the server keeps at most this much WAL for it.
ALTER SYSTEM SET max_slot_wal_keep_size = '64GB';
SELECT pg_reload_conf();

-- 2. The role, with LOGIN and REPLICATION only. Set its password with \\password in psql, and add
--    a hostssl line with scram-sha-256 to pg_hba.conf.
CREATE ROLE {role} WITH LOGIN REPLICATION;

-- 3. Privileges. Snapshots need SELECT; the stream contains every published row without it.
DO $$
BEGIN
  EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), {role_literal});
END $$;
{grants}
-- Snapshots and backfills read the start times of open transactions from pg_stat_activity.
GRANT pg_read_all_stats TO {role};

-- 4. The publication, before the slot: a slot cannot read changes older than its publication.
{publication};

-- 5. The slot. This waits for every open transaction that has written. From here on the server
--    keeps WAL for Tailrace, so start `tailrace capture` soon.
DO $$
BEGIN
  IF current_setting('server_version_num')::int >= {failover_version} THEN
    PERFORM pg_create_logical_replication_slot({slot}, '{plugin}', failover => true);
  ELSE
    PERFORM pg_create_logical_replication_slot({slot}, '{plugin}');
  END IF;
END $$;
"""
