"""The facts that the checks evaluate, read once from the source's catalogs.

Works for a role with LOGIN only: facts that such a role may not see are missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, TypeVar

import psycopg
from psycopg.rows import class_row

from tailrace.log.term import slot_name
from tailrace.postgres.connection import translate_error
from tailrace.postgres.names import TableName
from tailrace.postgres.publication import PublicationState, read_publication
from tailrace.postgres.slot import OpenTransaction, SlotState, open_transactions, read_slot
from tailrace.postgres.slot_terms import present_term, read_terms
from tailrace.postgres.table_state import TableState, read_published

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import LiteralString

    from psycopg import Connection

    from tailrace.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """The role that Tailrace connects as."""

    name: str
    superuser: bool
    replication: bool
    bypasses_row_security: bool
    sees_activity: bool
    """Whether it sees the sessions of other roles in pg_stat_activity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The network path of the connection."""

    local: bool
    loopback: bool
    encrypted: bool
    sslmode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSetting:
    """A setting of `ALTER ROLE ... SET` or `ALTER DATABASE ... SET` for Tailrace's sessions."""

    scope: str
    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The present state of the source."""

    config: Config
    log_exists: bool
    version: int
    standby: bool
    encoding: str
    database: str
    settings: Mapping[str, str]
    slots_used: int
    senders_used: int
    role: Role
    link: Link
    role_settings: Sequence[RoleSetting]
    slot: SlotState | None
    publication: PublicationState | None
    overlaps: Sequence[tuple[str, str]]
    tables: Sequence[TableState]
    unlogged: Sequence[TableName]
    transactions: Sequence[OpenTransaction]
    term: int = 0
    """The term of the log."""
    terms: Mapping[int, SlotState] = field(default_factory=dict)
    """The slots of all terms of this source, by term."""

    @property
    def slot_name(self) -> str:
        """The slot of the log's term."""
        return slot_name(self.config.source.slot, self.term)

    @property
    def taken_over(self) -> SlotState | None:
        """The slot of the highest term, if that is higher than the log's."""
        highest = max(self.terms, default=self.term)
        return self.terms[highest] if highest > self.term else None

    def setting(self, name: str) -> int:
        """A numeric setting in its own unit; 0 if the server does not have it."""
        return int(self.settings.get(name, 0))

    @property
    def partitions(self) -> list[str]:
        """The partitions that are published under their own names."""
        return [str(table.table) for table in self.tables if table.partition]


def gather(connection: Connection, config: Config, *, log_exists: bool) -> Facts:
    """Read all facts. Changes nothing."""
    try:
        return _gather(connection, config, log_exists=log_exists)
    except psycopg.Error as error:
        raise translate_error(connection, error) from error


def _gather(connection: Connection, config: Config, *, log_exists: bool) -> Facts:
    source, term = config.source, present_term(config)
    server = connection.execute(_SERVER).fetchone()
    assert server is not None
    standby, encoding, database, slots_used, senders_used = server
    publication = read_publication(connection, source.publication)
    return Facts(
        config=config,
        log_exists=log_exists,
        version=connection.info.server_version,
        standby=standby,
        encoding=encoding,
        database=database,
        settings=dict(connection.execute(_SETTINGS).fetchall()),
        slots_used=slots_used,
        senders_used=senders_used,
        role=_rows(connection, Role, _ROLE)[0],
        link=_link(connection),
        role_settings=_rows(connection, RoleSetting, _ROLE_SETTINGS),
        slot=read_slot(connection, slot_name(source.slot, term)),
        publication=publication,
        overlaps=connection.execute(_OVERLAPS, (source.publication,)).fetchall(),
        tables=read_published(connection, source.publication),
        unlogged=_unlogged(connection) if publication and publication.all_tables else (),
        transactions=open_transactions(connection),
        term=term,
        terms=read_terms(connection, source.slot),
    )


def _rows(connection: Connection, kind: type[T], query: LiteralString) -> list[T]:
    with connection.cursor(row_factory=class_row(kind)) as cursor:
        return cursor.execute(query).fetchall()


def _link(connection: Connection) -> Link:
    address = connection.info.hostaddr
    return Link(
        local=connection.info.host.startswith(("/", "@")),
        loopback=bool(address) and ip_address(address).is_loopback,
        encrypted=connection.pgconn.ssl_in_use,
        sslmode=connection.info.get_parameters().get("sslmode", "prefer"),
    )


def _unlogged(connection: Connection) -> list[TableName]:
    return [TableName(*row) for row in connection.execute(_UNLOGGED).fetchall()]


_SERVER = """
SELECT pg_is_in_recovery(),
       current_setting('server_encoding'),
       current_database(),
       (SELECT count(*) FROM pg_replication_slots),
       (SELECT count(*) FROM pg_stat_replication)
"""

_SETTINGS = """
SELECT name, setting FROM pg_settings WHERE name IN (
    'wal_level', 'effective_wal_level', 'max_replication_slots', 'max_wal_senders',
    'wal_sender_timeout', 'max_slot_wal_keep_size', 'idle_replication_slot_timeout',
    'synchronized_standby_slots')
"""

# Amazon RDS grants replication through membership in rds_replication instead of the attribute.
_ROLE = """
SELECT r.rolname AS name, r.rolsuper AS superuser, r.rolbypassrls AS bypasses_row_security,
       r.rolreplication OR EXISTS (
           SELECT FROM pg_roles g
           WHERE g.rolname = 'rds_replication' AND pg_has_role(r.oid, g.oid, 'MEMBER')
       ) AS replication,
       pg_has_role(r.oid, 'pg_read_all_stats', 'USAGE') AS sees_activity
FROM pg_roles r WHERE r.rolname = current_user
"""

_ROLE_SETTINGS = """
SELECT CASE WHEN s.setrole = 0 AND s.setdatabase = 0 THEN 'server'
            WHEN s.setrole = 0 THEN 'database' WHEN s.setdatabase = 0 THEN 'role'
            ELSE 'role in database' END AS scope,
       split_part(pair, '=', 1) AS name,
       substr(pair, strpos(pair, '=') + 1) AS value
FROM pg_db_role_setting s, unnest(s.setconfig) pair
WHERE s.setrole IN (0, (SELECT oid FROM pg_roles WHERE rolname = current_user))
  AND s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
ORDER BY 2, 1
"""

_OVERLAPS = """
SELECT DISTINCT other.pubname, format('%%s.%%s', other.schemaname, other.tablename)
FROM pg_publication_tables t
JOIN pg_publication_tables other USING (schemaname, tablename)
WHERE t.pubname = %s AND other.pubname <> t.pubname
ORDER BY 1, 2
"""

_UNLOGGED = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relpersistence = 'u' AND c.relkind = 'r' AND c.oid >= 16384
ORDER BY 1, 2
"""
