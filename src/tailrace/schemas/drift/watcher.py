"""The thread that reads the catalogs, compares, and applies the policy of each pipeline.

The last read is stored in the data folder, so a change made while Tailrace was stopped is found at
the next start. Drift is reported only after the log has reached the LSN of the read: only then is
it known what the stream has shown.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from tailrace.errors import TailraceError
from tailrace.position import Lsn
from tailrace.postgres.names import TableName
from tailrace.postgres.session import Session
from tailrace.schemas.drift import record
from tailrace.schemas.drift.compare import BACKFILLED, KINDS, REMOVING, compare
from tailrace.schemas.drift.facts import Facts, current_lsn, nonempty, read_facts
from tailrace.schemas.drift.notify import notify
from tailrace.schemas.drift.record import FOLDER, RecordedDrift
from tailrace.schemas.drift.sent import log_end, read_sent
from tailrace.schemas.schedule import CatalogSchedule
from tailrace.state_file import StateFile
from tailrace.tables import Tables

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from psycopg import Connection

    from tailrace.config import Config
    from tailrace.schemas.drift.compare import Drift
    from tailrace.schemas.drift.record import Policy

    Backfill = Callable[[str, TableName, str], None]

_FILE = "facts"
_SAVE_INTERVAL_S = 60.0
_MAX_LOG_LAG_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """One read of the catalogs, at `at` by the clock.

    `nonempty` are the tables that had rows afterwards. It can be compared after the log has
    reached `upto`.
    """

    facts: Facts
    nonempty: frozenset[int]
    upto: str
    at: float


class Watcher:
    """Watches the tables of all pipelines.

    `policies` are per pipeline; the default is `flag`. `backfill` gets a pipeline, a table and the
    reason, and returns after the request is stored durably. If it raises an error it is called
    again after the next read, so it may get the same request twice.
    """

    def __init__(
        self,
        config: Config,
        *,
        policies: Mapping[str, Policy] | None = None,
        backfill: Backfill | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._config = config
        self._policies: dict[str, Policy] = {
            name: (policies or {}).get(name, "flag") for name in config.pipelines
        }
        self._backfill = backfill
        self._clock = clock
        self._wall_clock = wall_clock
        self._schedule = CatalogSchedule(clock)
        self._session = Session(config, "tailrace schema drift")
        self._file = StateFile(config.data / FOLDER / _FILE, Facts)
        self._record = record.load(config.data)
        self._before = self._saved = self._file.read_or(None)
        self._saved_at = clock()
        self._pending: _Read | None = None
        """A read that waits for the log."""
        self._events = structlog.get_logger()

    def run(self, stop: threading.Event) -> None:
        """Check until stopped, whatever is unreachable meanwhile. A repeated error is logged
        once."""
        logged = ""
        try:
            while not stop.is_set():
                with self._schedule.reading():
                    try:
                        self.check()
                        logged = ""
                    except TailraceError as error:
                        if logged != str(error):
                            logged = str(error)
                            self._events.warning(
                                "schema_drift.check_failed", code=error.code, reason=logged
                            )
                stop.wait(self._schedule.wait_s())
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection to PostgreSQL."""
        self._session.close()

    def check(self) -> list[RecordedDrift]:
        """Read the catalogs once and handle all drift; what is new."""
        added = self._find()
        self._handle()
        return added

    def _find(self) -> list[RecordedDrift]:
        before = self._before
        if self._pending is None:
            with self._session.use() as connection:
                self._pending = self._read(connection)
        read = self._pending
        if before is None or before.source != read.facts.source:
            self._remember(read.facts)
            return []
        drift = compare(before, read.facts)
        if drift:
            if not self._log_reached(read):
                return []
            sent = read_sent(self._config.log.path, before.position)
            drift = compare(before, read.facts, sent)
        added = self._add(drift, read)
        self._remember(read.facts)
        return added

    def _read(self, connection: Connection) -> _Read:
        known = [table.oid for table in self._before.tables] if self._before else []
        end = log_end(self._config.log.path)
        facts = read_facts(connection, self._config.source.publication, known)
        facts = replace(facts, position=str(end.position)) if end else facts
        # First the facts, then which tables have rows, then the LSN: a row that was inserted in
        # between is in the stream before that LSN.
        drift = compare(self._before, facts) if self._before else []
        leaves = {oid for each in drift for oid in each.leaves}
        filled = nonempty(connection, leaves) if leaves else set()
        upto = current_lsn(connection) if leaves else facts.lsn
        return _Read(facts=facts, nonempty=frozenset(filled), upto=upto, at=self._clock())

    def _log_reached(self, read: _Read) -> bool:
        """Whether the log holds all that was written before a read. Gives up after a while."""
        end = log_end(self._config.log.path)
        expired = self._clock() > read.at + _MAX_LOG_LAG_S
        return end is None or end.end_lsn >= Lsn.parse(read.upto) or expired

    def _add(self, drift: list[Drift], read: _Read) -> list[RecordedDrift]:
        """Record what is new. Drift that is about rows of empty tables is ignored."""
        recorded = [
            self._recorded(each, read.facts)
            for each in drift
            if not each.leaves or not read.nonempty.isdisjoint(each.leaves)
        ]
        added = self._record.add(each for each in recorded if each.pipelines)
        if added:
            record.save(self._config.data, self._record)
        for each in added:
            self._events.warning(
                "schema_drift.found",
                kind=each.kind,
                table=f"{each.namespace}.{each.table}",
                subject=each.subject,
                detail=each.detail,
                meaning=KINDS[each.kind],
                lsn=each.lsn,
                pipelines=each.pipelines,
                hint=each.hint,
            )
        return added

    def _recorded(self, drift: Drift, after: Facts) -> RecordedDrift:
        # The id is based on the read on disk: after a crash the same comparison gives the same id.
        since = self._saved.lsn if self._saved else ""
        pipelines: dict[str, Policy] = {
            name: policy
            for name, policy in self._policies.items()
            if policy != "ignore"
            and Tables(self._config.pipelines[name].tables).match(drift.namespace, drift.table)
        }
        return RecordedDrift(
            id=f"{since} {drift.kind} {drift.oid} {drift.subject}",
            kind=drift.kind,
            namespace=drift.namespace,
            table=drift.table,
            relation_id=drift.oid,
            subject=drift.subject,
            detail=drift.detail,
            hint=_hint(drift),
            lsn=after.lsn,
            found_at=self._wall_clock().isoformat(),
            pipelines=pipelines,
            waiting=list(pipelines),
        )

    def _handle(self) -> None:
        """Notify and backfill, the oldest drift first.

        A pipeline that fails is skipped for the rest, so that its drift stays in order; the others
        are handled. Then its error is raised.
        """
        failed: dict[str, TailraceError] = {}
        for drift in self._record.found:
            for name in [*drift.waiting]:
                if name in failed:
                    continue
                try:
                    if name in self._config.pipelines:
                        notify(self._config.pipelines[name], drift, drift.pipelines[name])
                        self._request_backfill(name, drift)
                except TailraceError as error:
                    failed[name] = error
                else:
                    drift.waiting.remove(name)
                    record.save(self._config.data, self._record)
        for failure in failed.values():
            raise failure

    def _request_backfill(self, name: str, drift: RecordedDrift) -> None:
        due = drift.pipelines[name] == "backfill" and drift.kind in BACKFILLED
        if due and self._backfill is not None:
            reason = " ".join(filter(None, (drift.kind, drift.subject, drift.detail)))
            self._backfill(name, TableName(drift.namespace, drift.table), reason)

    def _remember(self, facts: Facts) -> None:
        """Keep the facts for the next comparison.

        They are written to disk if the tables differ, and once a minute for the position.
        """
        self._before, self._pending = facts, None
        differs = self._saved is None or self._saved.tables != facts.tables
        if differs or self._clock() > self._saved_at + _SAVE_INTERVAL_S:
            self._file.write(facts)
            self._saved, self._saved_at = facts, self._clock()


def _hint(drift: Drift) -> str:
    table = f"{drift.namespace}.{drift.table}"
    if drift.kind == "table-dropped":
        return f"Consumers still have the rows of {table}; remove them there."
    if drift.kind == "table-left":
        return f"To publish it again: tailrace table add CONFIG {table} --backfill"
    if drift.kind in REMOVING:
        return (
            f"Consumers still have rows that were removed. Reload {table} from a new snapshot; a "
            "backfill removes no rows."
        )
    return (
        f"Take a new snapshot of {table}, or backfill it; `schema_changes: backfill` on the "
        "pipeline does so automatically."
    )
