"""Checks of PostgreSQL: reachable, slot, publication, the connection that reads it, its WAL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.watch.checks.processes import is_stopping
from tailrace.watch.facts import UNANSWERED_S
from tailrace.watch.result import error, healthy, hint_of, initializing, paused, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.config import Alerts
    from tailrace.watch.facts import Facts, Report, SourceFacts
    from tailrace.watch.motion import Motion
    from tailrace.watch.result import Result

_LATE_S = 5.0


def source_checks(facts: Facts, motion: Motion, alerts: Alerts) -> Iterator[Result]:
    """All checks of the source. A follower has none."""
    if facts.follower:
        return
    source = facts.source
    if source is None or facts.source_age_s > UNANSWERED_S:
        if facts.source_age_s > UNANSWERED_S:
            yield error(
                "source",
                f"PostgreSQL has not answered for {facts.source_age_s:.0f} s",
                _UNREACHABLE,
            )
        else:
            yield initializing("source", "PostgreSQL was not asked yet")
        return
    if source.error:
        yield error(
            "source", f"{source.code}: {source.error}", hint_of(source.code) or _UNREACHABLE
        )
        return
    yield healthy("source", "PostgreSQL answers")
    yield _slot(source)
    yield _publication(source)
    if source.slot_exists:
        yield from _wal_kept(source, motion, alerts)
    files = facts.files
    if files is None:
        return
    report = files.reports.get("capture")
    if is_stopping(files) or (report is not None and report.ended):
        for check in ("replication", "progress", *(("heartbeat",) if alerts.heartbeat_s else ())):
            yield paused(check, "capture was stopped")
        return
    if source.slot_exists:
        yield _replication(report, source)
        yield _progress(motion, alerts)
    if alerts.heartbeat_s:
        yield _heartbeat(facts, source, alerts)


_UNREACHABLE = "Check that the server runs, and the network to it."


def _slot(source: SourceFacts) -> Result:
    if source.taken_over:
        return error(
            "slot", f"another machine has taken over with slot {source.taken_over}",
            "Run: tailrace follow", at_once=True,
        )  # fmt: skip
    if not source.slot_exists:
        return error(
            "slot", "the replication slot does not exist",
            "Changes since its last position are lost: see `tailrace reset --help`", at_once=True,
        )  # fmt: skip
    if source.slot_lost:
        return error("slot", f"SLOT_LOST: {source.slot_lost}", hint_of("SLOT_LOST"), at_once=True)
    if source.slot_misfit:
        return error("slot", source.slot_misfit, "Correct `source.slot`.", at_once=True)
    return healthy("slot", "the replication slot is as configured")


def _publication(source: SourceFacts) -> Result:
    if not source.publication_exists:
        return error(
            "publication", "the publication does not exist: capture cannot decode changes",
            "Create it again with the same tables: tailrace init",
        )  # fmt: skip
    if not source.tables:
        return warning(
            "publication", "the publication has no tables", "Run: tailrace table add TABLE"
        )
    return healthy("publication", f"{source.tables} tables are published")


def _replication(report: Report | None, source: SourceFacts) -> Result:
    if report is None:
        return initializing("replication", "capture has not reported yet")
    if report.alive and report.state == "starting":
        return initializing("replication", "capture starts")
    if not report.alive or report.state != "streaming":
        return error(
            "replication", "capture does not stream: PostgreSQL keeps its WAL",
            "See the log lines of capture, and `tailrace doctor`.",
        )  # fmt: skip
    if not source.active:
        return error(
            "replication", "no session reads the slot, though capture reports that it streams",
            "Restart capture.",
        )  # fmt: skip
    return healthy("replication", "capture streams")


def _wal_kept(source: SourceFacts, motion: Motion, alerts: Alerts) -> Iterator[Result]:
    kept = source.kept_wal_bytes
    if kept is None:
        return
    found = f"PostgreSQL keeps {_mib(kept)} of WAL for the slot"
    hint = "Find out why capture does not acknowledge: the checks progress and quorum say more."
    safe = source.safe_wal_bytes
    if motion.exceeds("wal_kept", kept, alerts.wal_bytes):
        yield error("wal_kept", f"{found}, the limit is {_mib(alerts.wal_bytes)}", hint)
    elif safe is not None and safe < kept:
        yield error(
            "wal_kept", f"{found}, and loses the slot after {_mib(max(safe, 0))} more", hint
        )
    elif motion.exceeds("wal_kept", kept, alerts.wal_bytes / 2, severity="warning"):
        yield warning("wal_kept", f"{found}, the limit is {_mib(alerts.wal_bytes)}", hint)
    else:
        yield healthy("wal_kept", found)


def _progress(motion: Motion, alerts: Alerts) -> Result:
    still_s = motion.capture_still_s
    if still_s >= alerts.stalled_s:
        return error(
            "progress", f"capture has not moved for {still_s:.0f} s while the source wrote WAL",
            "Restart capture: tailrace continues where it was.",
        )  # fmt: skip
    return healthy("progress", "capture keeps up")


def _heartbeat(facts: Facts, source: SourceFacts, alerts: Alerts) -> Result:
    if source.standby:
        return paused("heartbeat", "a standby takes no heartbeats")
    if not source.beats:
        return paused("heartbeat", "`capture.messages` is off")
    log = facts.files.log if facts.files else None
    reached = log.end.lsn if log else 0
    waits_s = next((facts.now - each.at for each in source.beats if each.lsn > reached), 0.0)
    late_s = max(alerts.heartbeat_s, _LATE_S)
    return heartbeat("", waits_s, late_s=late_s, missing_s=alerts.stalled_s)


def heartbeat(subject: str, waits_s: float, *, late_s: float, missing_s: float) -> Result:
    """Whether heartbeats arrive, by the time that the oldest one is under way."""
    if waits_s >= missing_s:
        return error(
            "heartbeat", f"missing: a heartbeat is under way for {waits_s:.0f} s",
            "See the checks replication and progress.", subject,
        )  # fmt: skip
    if waits_s >= late_s:
        return warning(
            "heartbeat", f"late: a heartbeat is under way for {waits_s:.0f} s", "", subject
        )
    return healthy("heartbeat", "ok", subject)


def _mib(count: int) -> str:
    """A number of bytes, rounded: `512 MiB`."""
    return f"{count / 2**20:,.0f} MiB"
