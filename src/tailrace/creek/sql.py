"""The schema `_creek` in the source: the Avro schemas in use, and functions for tables.

`SELECT _creek.add_table('publication', 'schema.table')` and `remove_table` alter a publication with
the privileges of their caller: they allow no more than `ALTER PUBLICATION` does. Each also writes a
logical message into its transaction, so that the log holds the LSN of the commit, and notifies a
running producer, which needs no restart.

PostgreSQL replaces a function only by one whose parameters have the same names. So they have the
names of Creek's own functions: each producer can replace those of the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import psycopg
from pydantic import PlainSerializer

from tailrace.postgres.connection import translate_error
from tailrace.postgres.names import quote_ident

if TYPE_CHECKING:
    from collections.abc import Iterable

    from psycopg import Connection

CHANNEL = "creek"
"""The channel that producers listen on."""
PREFIX = "creek.tables"
"""Prefix of the logical messages for added and removed tables: {action, publication, oid}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSchema:
    """A row of `_creek.avro_schemas`; `at` is when the schema was first known.

    Also stored in the data folder, where `at` is in ISO format.
    """

    fingerprint: str
    schema: str
    source: str
    at: Annotated[datetime, PlainSerializer(datetime.isoformat)]


def installed(connection: Connection) -> bool:
    """Whether the table and the functions exist. Creek's own functions do not count."""
    try:
        row = connection.execute(_INSTALLED).fetchone()
    except psycopg.Error as error:
        raise translate_error(connection, error) from error
    return row is not None and bool(row[0])


def install(connection: Connection, *, role: str = "") -> None:
    """Create what is missing, replace the functions, and grant a role their use."""
    try:
        with connection.transaction():
            # Two sessions that create the schema at the same time would fail.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('tailrace._creek'))")
            connection.execute(_SETUP.encode())
            if role:
                connection.execute(_grants(role).encode())
    except psycopg.Error as error:
        raise translate_error(connection, error) from error


def setup_sql(role: str) -> str:
    """The same as a script for a DBA, to follow that of `tailrace.postgres.bootstrap`."""
    return f"{_TITLE}{_SETUP}{_grants(role)}"


def save(connection: Connection, schemas: Iterable[StoredSchema]) -> list[StoredSchema]:
    """Store schemas, and return them as stored.

    For a known fingerprint the newest text wins and the time stays.
    """
    rows = [(each.fingerprint, each.schema, each.source, each.at) for each in schemas]
    try:
        with connection.cursor() as cursor:
            cursor.executemany(_SAVE, rows)
            cursor.execute(_SAVED, ([row[0] for row in rows],))
            stored = cursor.fetchall()
    except psycopg.Error as error:
        raise translate_error(connection, error) from error
    return [
        StoredSchema(fingerprint=fingerprint, schema=schema, source=source, at=at)
        for fingerprint, schema, source, at in stored
    ]


def find(connection: Connection, fingerprint: str) -> StoredSchema | None:
    """The schema of a fingerprint."""
    try:
        row = connection.execute(_FIND, (fingerprint,)).fetchone()
    except psycopg.Error as error:
        raise translate_error(connection, error) from error
    if row is None:
        return None
    return StoredSchema(fingerprint=fingerprint, schema=row[0], source=row[1], at=row[2])


def _grants(role: str) -> str:
    return _GRANTS.format(role=quote_ident(role))


_INSTALLED = """
SELECT count(*) = 3 FROM (
    SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = '_creek' AND c.relname = 'avro_schemas'
    UNION ALL
    SELECT FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = '_creek' AND p.proname IN ('add_table', 'remove_table')
      AND p.proargtypes::text = '25 2205' AND strpos(p.prosrc, 'creek.tables') > 0
) found
"""

_SAVE = """
INSERT INTO _creek.avro_schemas AS known (fingerprint, schema, source, at)
VALUES (%s, %s, %s, %s)
ON CONFLICT (fingerprint) DO UPDATE SET schema = EXCLUDED.schema, source = EXCLUDED.source
WHERE known.schema <> EXCLUDED.schema
"""

_SAVED = """
SELECT fingerprint, schema, source, at FROM _creek.avro_schemas WHERE fingerprint = ANY(%s)
"""

_FIND = "SELECT schema, source, at FROM _creek.avro_schemas WHERE fingerprint = %s"

_TITLE = """
-- 6. Creek: the Avro schemas in use, and the functions that add and remove tables. They run with
--    the privileges of their caller, who must be allowed to alter the publication.
"""

_SETUP = """\
CREATE SCHEMA IF NOT EXISTS _creek;
REVOKE ALL ON SCHEMA _creek FROM PUBLIC;

CREATE TABLE IF NOT EXISTS _creek.avro_schemas (
    fingerprint text PRIMARY KEY,
    schema text NOT NULL,
    source text NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
);
REVOKE ALL ON TABLE _creek.avro_schemas FROM PUBLIC;

-- Functions of earlier releases of Tailrace, whose parameters have other names.
DO $block$
DECLARE
    earlier regprocedure;
BEGIN
    FOR earlier IN
        SELECT p.oid FROM pg_catalog.pg_proc p
        JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = '_creek' AND p.proname IN ('add_table', 'remove_table')
          AND p.proargtypes::text = '25 2205' AND p.proargnames = ARRAY['publication', 'table']
    LOOP
        EXECUTE 'DROP FUNCTION ' || earlier;
    END LOOP;
END $block$;

CREATE OR REPLACE FUNCTION _creek.add_table(pub text, _tbl regclass) RETURNS void
LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    content text := json_build_object('action', 'add', 'publication', $1, 'oid', $2::oid::int8);
    target text;
    unidentified text;
BEGIN
    IF EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
               WHERE p.pubname = $1 AND r.prrelid = $2) THEN
        RETURN;
    END IF;
    SELECT format('%I.%I', n.nspname, c.relname) INTO STRICT target
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $2;
    SELECT string_agg(format('%I.%I', n.nspname, c.relname), ', ') INTO unidentified
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE (c.oid = $2 OR c.oid IN (SELECT relid FROM pg_partition_tree($2) WHERE isleaf))
      AND c.relkind = 'r'
      AND (c.relreplident = 'n' OR (c.relreplident = 'd' AND NOT EXISTS (
          SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)))
      AND EXISTS (SELECT FROM pg_publication WHERE pubname = $1 AND (pubupdate OR pubdelete));
    IF unidentified IS NOT NULL THEN
        RAISE EXCEPTION 'published without a primary key, % would refuse UPDATE and DELETE',
            unidentified
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Add a primary key, or: ALTER TABLE ... REPLICA IDENTITY FULL';
    END IF;
    EXECUTE format('ALTER PUBLICATION %I ADD TABLE ', $1) || target;
    PERFORM pg_logical_emit_message(true, 'creek.tables', content);
    PERFORM pg_notify('creek', content);
END $function$;

CREATE OR REPLACE FUNCTION _creek.remove_table(pub text, _tbl regclass) RETURNS void
LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    content text := json_build_object('action', 'remove', 'publication', $1, 'oid', $2::oid::int8);
    target text;
BEGIN
    IF EXISTS (SELECT FROM pg_publication WHERE pubname = $1 AND NOT puballtables)
       AND NOT EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
                       WHERE p.pubname = $1 AND r.prrelid = $2) THEN
        RETURN;
    END IF;
    SELECT format('%I.%I', n.nspname, c.relname) INTO STRICT target
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $2;
    EXECUTE format('ALTER PUBLICATION %I DROP TABLE ', $1) || target;
    PERFORM pg_logical_emit_message(true, 'creek.tables', content);
    PERFORM pg_notify('creek', content);
END $function$;

REVOKE ALL ON FUNCTION _creek.add_table(text, regclass) FROM PUBLIC;
REVOKE ALL ON FUNCTION _creek.remove_table(text, regclass) FROM PUBLIC;
"""

_GRANTS = """\
GRANT USAGE ON SCHEMA _creek TO {role};
GRANT SELECT, INSERT, UPDATE ON TABLE _creek.avro_schemas TO {role};
GRANT EXECUTE ON FUNCTION _creek.add_table(text, regclass) TO {role};
GRANT EXECUTE ON FUNCTION _creek.remove_table(text, regclass) TO {role};
"""
