"""The thread that looks at the catalogs, compares, and does about it what each pipeline asks for.

What the last look saw is kept in the data folder, so a change made while nothing ran is found at
the next start. A finding is held back until the log has come as far as the look: only then is it
known what the stream has told.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog
from pydantic import ValidationError

from tailrace.errors import TailraceError
from tailrace.log.store import LocalStore
from tailrace.position import Lsn
from tailrace.postgres.publication import TableName
from tailrace.postgres.session import Session
from tailrace.schemas.drift import record, telling
from tailrace.schemas.drift.compare import BACKFILLED, GONE, KINDS, compare
from tailrace.schemas.drift.facts import ADAPTER, Facts, current_lsn, filled, read_facts
from tailrace.schemas.drift.record import FOLDER, Found
from tailrace.schemas.drift.sent import log_end, read_sent
from tailrace.tables import Tables

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from psycopg import Connection

    from tailrace.config import Config
    from tailrace.schemas.drift.compare import Drift
    from tailrace.schemas.drift.record import Policy

    Backfill = Callable[[str, TableName, str], None]

LOOK_S = 5.0
_REST = 20
_FILE = "facts"
_SAVE_S = 60.0
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A look, and the LSN the log has to reach before it can be judged."""

    facts: Facts
    holding: frozenset[int]
    upto: str
    at: float


class Watcher:
    """Looks after the tables of all pipelines.

    `policies` are by pipeline; one that is not named has `flag`. `backfill` gets a pipeline, a
    table and the reason, and returns when the request is kept somewhere safe; what it raises is
    tried again at the next look, so it may get the same request twice.
    """

    def __init__(
        self,
        config: Config,
        *,
        policies: Mapping[str, Policy] | None = None,
        backfill: Backfill | None = None,
    ) -> None:
        self._config = config
        given = policies or {}
        self._policies: dict[str, Policy] = {
            name: given.get(name, "flag") for name in config.pipelines
        }
        self._backfill = backfill
        self._session = Session(config, "tailrace silent")
        self._store = LocalStore(config.data / FOLDER, create=True)
        self._findings = record.load(config.data)
        self._before = self._saved = self._load()
        self._saved_at = time.monotonic()
        self._held: _Seen | None = None
        self._events = structlog.get_logger()

    def run(self, stop: threading.Event) -> None:
        """Look until told to stop, whatever is down meanwhile."""
        said = ""
        try:
            while not stop.is_set():
                began = time.monotonic()
                try:
                    self.look()
                    said = ""
                except TailraceError as error:
                    if said != str(error):
                        said = str(error)
                        self._events.warning("silent.waiting", code=error.code, reason=said)
                # Thousands of tables are looked at more rarely: never more than a part of the time.
                stop.wait(max(LOOK_S, _REST * (time.monotonic() - began)))
        finally:
            self.close()

    def close(self) -> None:
        """Hang up."""
        self._session.close()

    def look(self) -> list[Found]:
        """Look once, and tell whom there is to tell; what is new."""
        news = self._look()
        self._tell()
        return news

    def _look(self) -> list[Found]:
        before = self._before
        if self._held is None:
            with self._session.use() as connection:
                self._held = self._seen(connection)
        seen = self._held
        if before is None or before.source != seen.facts.source:
            self._keep(seen.facts)
            return []
        findings = compare(before, seen.facts)
        if findings:
            if not self._told_by_now(seen):
                return []
            sent = read_sent(self._config.log.path, before.position)
            findings = compare(before, seen.facts, sent)
        added = self._note(findings, seen)
        self._keep(seen.facts)
        return added

    def _seen(self, connection: Connection) -> _Seen:
        known = [table.oid for table in self._before.tables] if self._before else []
        end = log_end(self._config.log.path)
        facts = read_facts(connection, self._config.source.publication, known)
        facts = replace(facts, position=str(end.position)) if end else facts
        # Which tables hold anything is asked after the look, and the stream only after that: a row
        # that came in between then is in the stream.
        asked = compare(self._before, facts) if self._before else []
        leaves = {oid for finding in asked for oid in finding.leaves}
        holding = filled(connection, leaves) if leaves else set()
        upto = current_lsn(connection) if leaves else facts.lsn
        return _Seen(facts=facts, holding=frozenset(holding), upto=upto, at=time.monotonic())

    def _told_by_now(self, seen: _Seen) -> bool:
        """Whether the log has all that was written before a look. Not waited for without end."""
        end = log_end(self._config.log.path)
        late = time.monotonic() > seen.at + _PATIENCE_S
        return end is None or end.end_lsn >= Lsn.parse(seen.upto) or late

    def _note(self, findings: list[Drift], seen: _Seen) -> list[Found]:
        """Keep what is new, without what is about rows of tables that have none."""
        concerned = [
            self._found(finding, seen.facts)
            for finding in findings
            if not finding.leaves or not seen.holding.isdisjoint(finding.leaves)
        ]
        added = self._findings.add(each for each in concerned if each.pipelines)
        if added:
            record.save(self._config.data, self._findings)
        for each in added:
            self._events.warning(
                "silent.found",
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

    def _found(self, finding: Drift, after: Facts) -> Found:
        # After a crash the comparison is with the look on disk once more: the same id.
        since = self._saved.lsn if self._saved else ""
        concerned: dict[str, Policy] = {
            name: policy
            for name, policy in self._policies.items()
            if policy != "ignore"
            and Tables(self._config.pipelines[name].tables).match(finding.namespace, finding.table)
        }
        return Found(
            id=f"{since} {finding.kind} {finding.oid} {finding.subject}",
            kind=finding.kind,
            namespace=finding.namespace,
            table=finding.table,
            relation_id=finding.oid,
            subject=finding.subject,
            detail=finding.detail,
            hint=_hint(finding),
            lsn=after.lsn,
            found_at=datetime.now(UTC).isoformat(),
            pipelines=concerned,
            waiting=list(concerned),
        )

    def _tell(self) -> None:
        """Do what is still to be done, the oldest first. One pipeline does not hold up others."""
        failed: dict[str, TailraceError] = {}
        for each in self._findings.found:
            for name in [*each.waiting]:
                if name in failed:
                    continue
                try:
                    if name in self._config.pipelines:
                        telling.tell(self._config.pipelines[name], each, each.pipelines[name])
                        self._fill(name, each)
                except TailraceError as error:
                    failed[name] = error
                else:
                    each.waiting.remove(name)
                    record.save(self._config.data, self._findings)
        for failure in failed.values():
            raise failure

    def _fill(self, name: str, each: Found) -> None:
        wanted = each.pipelines[name] == "backfill" and each.kind in BACKFILLED
        if wanted and self._backfill is not None:
            reason = " ".join(filter(None, (each.kind, each.subject, each.detail)))
            self._backfill(name, TableName(each.namespace, each.table), reason)

    def _keep(self, facts: Facts) -> None:
        """Remember a look; on disk when it differs, and now and then for its position."""
        self._before, self._held = facts, None
        differs = self._saved is None or self._saved.tables != facts.tables
        if differs or time.monotonic() > self._saved_at + _SAVE_S:
            self._store.write_atomic(_FILE, ADAPTER.dump_json(facts))
            self._saved, self._saved_at = facts, time.monotonic()

    def _load(self) -> Facts | None:
        with contextlib.suppress(FileNotFoundError, ValidationError):
            return ADAPTER.validate_json((self._store.folder / _FILE).read_bytes())
        return None


def _hint(finding: Drift) -> str:
    table = f"{finding.namespace}.{finding.table}"
    if finding.kind == "table-dropped":
        return f"Consumers keep the rows of {table} until somebody removes them."
    if finding.kind == "table-left":
        return f"To have it back: tailrace table add CONFIG {table} --backfill"
    if finding.kind in GONE:
        return (
            f"Consumers have rows that are gone. Let them begin anew with a snapshot of {table}; a "
            "backfill removes nothing."
        )
    return (
        f"Take a new snapshot of {table}, or backfill it; `schema_changes: backfill` on the "
        "pipeline does so by itself."
    )
