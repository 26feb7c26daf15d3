"""The position of each lane of a pipeline, in a table of the target database.

A lane writes its position in the transaction that stores its messages, so a position is committed
if and only if its messages are. The column `owner` fences: opening a sink replaces it, and every
commit requires its own value. A sink whose process was suspended and wakes up can therefore not
commit once its successor has opened.

The successor also ends the connection of its predecessor, whose open transaction would hold locks
on rows for as long as its process is suspended.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from tailrace.errors import SinkFencedError
from tailrace.position import Lsn, Position
from tailrace.postgres.names import TableName, quote_ident
from tailrace.sinks.ledger import LanePosition

if TYPE_CHECKING:
    from tailrace.sinks.postgres.session import Session

_COLUMNS = """(
    pipeline text NOT NULL,
    lane integer NOT NULL,
    owner text NOT NULL,
    backend_pid integer NOT NULL,
    backend_start timestamptz NOT NULL,
    history text,
    lanes integer,
    commit_lsn pg_lsn,
    ordinal bigint,
    after_lsn pg_lsn,
    after_ordinal bigint,
    messages bigint,
    digest text,
    updated_at timestamptz,
    PRIMARY KEY (pipeline, lane)
)"""
_TERMINATE = """
SELECT pg_terminate_backend(a.pid) FROM pg_catalog.pg_stat_activity a, {table} p
WHERE (p.pipeline, p.lane) = (%s, %s)
AND (a.pid, a.backend_start) = (p.backend_pid, p.backend_start)
AND a.pid <> pg_backend_pid() AND a.usename = current_user
"""
_CLAIM = """
INSERT INTO {table} AS p (pipeline, lane, owner, backend_pid, backend_start)
SELECT %s, %s, %s, pid, backend_start FROM pg_catalog.pg_stat_activity WHERE pid = pg_backend_pid()
ON CONFLICT (pipeline, lane) DO UPDATE SET
(owner, backend_pid, backend_start) = (excluded.owner, excluded.backend_pid, excluded.backend_start)
"""
_READ = """
SELECT lane, history, lanes, commit_lsn::text, ordinal, after_lsn::text, after_ordinal, messages,
    digest
FROM {table} WHERE pipeline = %s AND history IS NOT NULL
"""
_STORE = """
UPDATE {table} SET history = %s, lanes = %s, commit_lsn = %s, ordinal = %s, after_lsn = %s,
after_ordinal = %s, messages = %s, digest = %s, updated_at = now()
WHERE (pipeline, lane, owner) = (%s, %s, %s)
"""


class Positions:
    """The row of one lane in the table of positions."""

    def __init__(self, table: str, *, pipeline: str, lane: int) -> None:
        self.table = TableName.parse(table)
        self._key = (pipeline, lane)
        self._owner = uuid.uuid4().hex

    def _sql(self, statement: str) -> str:
        # Statements with parameters need %% for a per cent sign.
        return statement.format(table=self.table.quoted.replace("%", "%%"))

    def read(self, session: Session) -> dict[int, LanePosition]:
        """The stored positions of all lanes of the pipeline."""
        rows = session.run(self._sql(_READ), self._key[:1])
        return {row[0]: _position(row) for row in rows}

    def claim(self, session: Session) -> None:
        """Become the owner, and end the connection of the predecessor."""
        session.run(self._sql(_TERMINATE), self._key)
        # Waits for a commit of the predecessor that is under way.
        session.run(self._sql(_CLAIM), (*self._key, self._owner))

    def owned(self, session: Session) -> bool:
        """Whether no other sink has claimed the lane since."""
        statement = self._sql("SELECT owner FROM {table} WHERE (pipeline, lane) = (%s, %s)")
        row = session.run(statement, self._key).fetchone()
        return row is not None and row[0] == self._owner

    def store(self, session: Session, at: LanePosition) -> None:
        """Write the position, in the transaction that carries the messages."""
        values: list[Any] = [at.source, at.lanes]
        for position in (at.position, at.after):
            values += [str(position.lsn), position.ordinal]
        values += [at.count, f"{at.digest:016x}"]
        if session.run(self._sql(_STORE), (*values, *self._key, self._owner)).rowcount != 1:
            raise self.fenced()

    def fenced(self) -> SinkFencedError:
        """The error of a sink that no longer owns its lane."""
        pipeline, lane = self._key
        return SinkFencedError(
            f"lane {lane} of pipeline {pipeline} was opened by another process, or its row in "
            f"{self.table} was deleted"
        )


def create(session: Session, table: TableName) -> None:
    """Create the table of positions if it is missing, with its schema."""
    if exists(session, table):
        return
    with session.transaction():
        # Two concurrent CREATE TABLE IF NOT EXISTS do not see each other, and one would fail.
        session.run("SELECT pg_advisory_xact_lock(hashtext('tailrace sink'))")
        create_schema(session, table.namespace)
        session.run(f"CREATE TABLE IF NOT EXISTS {table.quoted} {_COLUMNS}")


def create_schema(session: Session, name: str) -> None:
    """Create a schema if it is missing: IF NOT EXISTS needs the permission even if it exists."""
    row = session.run("SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s", [name]).fetchone()
    if row is None:
        session.run(f"CREATE SCHEMA IF NOT EXISTS {quote_ident(name)}")


def exists(session: Session, table: TableName) -> bool:
    """Whether there is a table of this name."""
    row = session.run("SELECT to_regclass(%s)::oid", [table.quoted]).fetchone()
    return row is not None and row[0] is not None


def _position(row: tuple[Any, ...]) -> LanePosition:
    lane, history, lanes, lsn, ordinal, after_lsn, after_ordinal, messages, digest = row
    return LanePosition(
        position=Position(Lsn.parse(lsn), ordinal),
        after=Position(Lsn.parse(after_lsn), after_ordinal),
        source=history,
        lane=lane,
        lanes=lanes,
        count=messages,
        digest=int(digest, 16),
    )
