"""Asks PostgreSQL, and emits heartbeats. Runs in a thread of its own: the server may hang."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace.log.term import slot_name
from tailrace.postgres.probe import Probe
from tailrace.postgres.slot import PLUGIN
from tailrace.watch.facts import Beat, SourceFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.config import Config
    from tailrace.postgres.probe import Observation
    from tailrace.postgres.slot import SlotState

TIMEOUT_S = 5.0
_MAX_BEATS = 1000


class SourceWatch:
    """The source of a config, as the watchdog's own session sees it.

    `term` is that of the log, which another thread reads: its disk may hang.
    """

    def __init__(
        self,
        config: Config,
        *,
        heartbeat_s: float,
        term: Callable[[], int | None],
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._heartbeat_s = heartbeat_s
        self._term = term
        self._clock = clock
        self._probe = Probe(config.source.dsn.get_secret_value(), timeout_s=TIMEOUT_S)
        self._beats: deque[Beat] = deque(maxlen=_MAX_BEATS)
        self._next_beat_at = float("-inf")

    def ask(self) -> SourceFacts | None:
        """Ask once. A server that does not answer is a fact too; None while no term is known."""
        source, term = self._config.source, self._term()
        if term is None:
            return None
        try:
            slot = slot_name(source.slot, term)
            seen = self._probe.observe(base=source.slot, slot=slot, publication=source.publication)
            # Beats after the end of the WAL were lost with it, by a restore.
            kept = [each for each in self._beats if each.lsn <= seen.wal_end]
            self._beats = deque(kept, maxlen=_MAX_BEATS)
            if not seen.standby:
                self._beat()
        except TailraceError as failure:
            return SourceFacts(error=str(failure), code=failure.code, beats=tuple(self._beats))
        return _facts(seen, term, tuple(self._beats))

    def _beat(self) -> None:
        now = self._clock()
        if not self._heartbeat_s or now < self._next_beat_at:
            return
        self._beats.append(Beat(lsn=self._probe.beat(), at=now))
        self._next_beat_at = now + self._heartbeat_s


def _facts(seen: Observation, term: int, beats: tuple[Beat, ...]) -> SourceFacts:
    slot, publication = seen.slot, seen.publication
    later = max(seen.terms, default=term)
    facts = SourceFacts(
        standby=seen.standby,
        wal_end=seen.wal_end,
        slot_exists=slot is not None,
        taken_over=seen.terms[later].name if later > term else "",
        publication_exists=publication is not None,
        tables=len(publication.tables) if publication else 0,
        beats=beats,
    )
    if slot is None:
        return facts
    return replace(
        facts,
        slot_lost=(slot.invalidation_reason or "its WAL was removed") if slot.lost else "",
        slot_misfit=_misfit(slot, seen.database),
        active=slot.active_pid is not None,
        confirmed=slot.confirmed_flush_lsn,
        kept_wal_bytes=slot.kept_wal_bytes,
        safe_wal_bytes=slot.safe_wal_bytes,
    )


def _misfit(slot: SlotState, database: str) -> str:
    """Why capture cannot read a slot; empty if it can."""
    if slot.slot_type != "logical" or slot.plugin != PLUGIN:
        return f"it is not a logical slot of {PLUGIN}"
    if slot.database != database:
        return f"it belongs to database {slot.database}"
    return ""
