"""Mode `events`: every message is a row of one table, which keeps the changes of other tables.

The columns are those of a table of change events that users of other systems know: position, table,
action, time. What MESSAGES does not carry PostgreSQL takes from the payload, in generated columns:
they are NULL for a payload without it.

Rows are sent with COPY in its binary format, so the types of the columns must be exactly these.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from tailrace.errors import SinkRefusedError
from tailrace.postgres.names import TableName
from tailrace.sinks.postgres import binary, partitions
from tailrace.sinks.postgres.failures import refused
from tailrace.sinks.postgres.positions import create_schema, exists
from tailrace.sinks.postgres.text import not_text, with_escaped_nul

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from tailrace.sinks.outcome import Outcome
    from tailrace.sinks.postgres.session import Session
    from tailrace.sinks.postgres.settings import PostgresSink

_COLUMNS = {
    "pipeline": "text",
    "id": "text",
    "commit_lsn": "bigint",
    "commit_idx": "bigint",
    "destination": "text",
    "key": "text",
    "committed_at": "timestamp with time zone",
}
"""The columns that the sink writes besides `payload`, in the order of its COPY."""
_GENERATED = {
    "action": """CASE coalesce(payload ->> 'op', payload ->> 'action', payload ->> 'operation')
        WHEN 'c' THEN 'insert' WHEN 'u' THEN 'update' WHEN 'd' THEN 'delete'
        WHEN 't' THEN 'truncate' WHEN 'm' THEN 'message' WHEN 'r' THEN 'read'
        ELSE lower(coalesce(payload ->> 'op', payload ->> 'action', payload ->> 'operation'))
    END""",
    "source_table_schema": """coalesce(payload ->> 'schema',
        payload -> 'metadata' ->> 'table_schema', payload -> 'source' ->> 'schema')""",
    "source_table_name": """coalesce(payload ->> 'table',
        payload -> 'metadata' ->> 'table_name', payload -> 'source' ->> 'table')""",
}
"""What the shapes plain, sequin, bridge and debezium call it."""
_RANGE = "RANGE (committed_at)"
_DROP_EVERY_S = 600.0
_FIND = """
SELECT a.attname, format_type(a.atttypid, -1) FROM pg_catalog.pg_attribute a
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
"""


def definition(table: TableName, payload: str) -> str:
    """The statements that create the table."""
    generated = (
        ()
        if payload == "bytea"
        else (
            f"{name} text GENERATED ALWAYS AS ({value}) STORED"
            for name, value in _GENERATED.items()
        )
    )
    lines = [
        *(
            f"{name} {kind}{'' if name == 'key' else ' NOT NULL'}"
            for name, kind in _COLUMNS.items()
        ),
        "inserted_at timestamp with time zone NOT NULL DEFAULT now()",
        f"payload {payload} NOT NULL",
        *generated,
    ]
    return (
        f"CREATE TABLE {table.quoted} (\n    "
        + ",\n    ".join(lines)
        + f"\n) PARTITION BY {_RANGE};\n"
        f"CREATE INDEX ON {table.quoted} (commit_lsn, commit_idx)"
    )


class Events:
    """The table of events of one lane's sink. `connect` opens a second connection."""

    def __init__(
        self,
        settings: PostgresSink,
        *,
        pipeline: str,
        maintains: bool,
        connect: Callable[[], Session],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._pipeline = pipeline
        self._maintains = maintains
        self._connect = connect
        self._clock = clock
        self._table = TableName.parse(settings.events)
        self._periods: partitions.Periods | None = None
        self._drop_due_s = 0.0
        names = ", ".join([*_COLUMNS, "payload"])
        self._copy = f"COPY {self._table.quoted} ({names}) FROM STDIN (FORMAT binary)"

    def connected(self, session: Session) -> None:
        """Create the table if it is missing, and check its columns."""
        if not exists(session, self._table):
            with session.transaction():
                session.run("SELECT pg_advisory_xact_lock(hashtext('tailrace sink'))")
                if not exists(session, self._table):
                    create_schema(session, self._table.namespace)
                    session.run(definition(self._table, self._settings.payload))
        self._check_columns(session)
        by_time = partitions.partition_key(session, self._table) == _RANGE
        if self._settings.retention and not by_time:
            raise SinkRefusedError(
                f"table {self._table} is not partitioned by {_RANGE}",
                hint="Remove `retention` of the sink, or let the sink create the table.",
            )
        self._periods = (
            partitions.Periods(self._table, self._settings.partition) if by_time else None
        )

    def _check_columns(self, session: Session) -> None:
        wanted = _COLUMNS | {"payload": self._settings.payload}
        found = dict(session.run(_FIND, [self._table.quoted]).fetchall())
        wrong = [f"{name} {kind}" for name, kind in wanted.items() if found.get(name) != kind]
        if wrong:
            raise SinkRefusedError(
                f"table {self._table} lacks columns, or they have another type: {', '.join(wrong)}",
                hint="Correct the table, or set `events` to a table that the sink can create.",
            )

    def opened(self) -> None:
        """Create partitions ahead of the rows; drop old ones from time to time."""
        if self._periods is None:
            return
        now_s = self._clock()
        ahead = self._periods.around(int(now_s * 1_000_000))
        keep = self._settings.keep if self._maintains and now_s >= self._drop_due_s else None
        if not ahead and keep is None:
            return
        now_us = int(now_s * 1_000_000)
        with contextlib.closing(self._connect()) as other:
            if ahead:
                self._periods.create(other, ahead)
            if keep is not None:
                partitions.drop_old(other, self._table, now_us=now_us, keep=keep)
                self._drop_due_s = now_s + _DROP_EVERY_S

    def inspect(self, batch: pa.RecordBatch) -> dict[int, Outcome]:
        """The rows that are not text where the table has text."""
        found: dict[int, Outcome] = {}
        text = ["destination", "id", "key"]
        if self._settings.payload != "bytea":
            text.append("payload")
        for name in text:
            for row in not_text(batch.column(name)):
                found[row] = refused(f"its {name} is not UTF-8, or contains a NUL character")
        if self._settings.payload == "jsonb":
            for row in with_escaped_nul(batch.column("payload")):
                found[row] = refused(
                    r"its payload contains the character \u0000, which jsonb cannot hold",
                    "Set `payload: json` for a new table, or correct the value.",
                )
        return found

    def prepare(self, session: Session, rows: pa.RecordBatch) -> None:
        """Create the partitions of these rows, over another connection."""
        del session
        if self._periods is None:
            return
        missing = self._periods.missing(rows.column("committed_at").to_numpy())
        if missing:
            with contextlib.closing(self._connect()) as other:
                self._periods.create(other, missing)

    def store(self, session: Session, rows: pa.RecordBatch) -> None:
        """Insert the rows. Errors stay psycopg's."""
        payload = rows.column("payload")
        fields = [
            binary.constant(self._pipeline, rows.num_rows),
            binary.plain(rows.column("id")),
            binary.integers(rows.column("lsn").to_numpy()),
            binary.integers(rows.column("ordinal").to_numpy()),
            binary.plain(rows.column("destination")),
            binary.plain(rows.column("key")),
            binary.timestamps(rows.column("committed_at").to_numpy()),
            binary.jsonb(payload) if self._settings.payload == "jsonb" else binary.plain(payload),
        ]
        session.copy(self._copy, binary.chunks(fields))

    def ended(self, *, committed: bool) -> None:
        """Nothing of a transaction is remembered."""
