"""Checks of the machine and of what lies on it: log, disks, memory, certificates, replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.watch.result import error, healthy, initializing, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.config import Alerts
    from tailrace.watch.facts import CertificateFact, DiskFact, Facts, FileFacts
    from tailrace.watch.motion import Motion
    from tailrace.watch.result import Result

UNREAD_S = 30.0
_DAY_S = 86_400.0
_NEARLY = 0.8
_MEMORY_SHARE = 0.9


def machine_checks(facts: Facts, motion: Motion, alerts: Alerts) -> Iterator[Result]:
    """All checks of the machine."""
    if facts.files_age_s > UNREAD_S:
        yield error(
            "files", f"the disk has not answered for {facts.files_age_s:.0f} s",
            "Check the disks of the log and of the data folder.",
        )  # fmt: skip
        return
    files = facts.files
    if files is None:
        yield initializing("files", "not read yet")
        return
    yield healthy("files", "the files can be read")
    yield from _log(files, motion, alerts)
    for disk in files.disks:
        yield _disk(disk, motion, alerts)
    yield from _memory(files, motion, alerts)
    for certificate in files.certificates:
        yield _certificate(certificate, facts.time, alerts)
    yield from _replicas(facts, files)


def _log(files: FileFacts, motion: Motion, alerts: Alerts) -> Iterator[Result]:
    if files.log_error:
        yield error("log", f"{files.log_error}: the log cannot be read", "Run: tailrace log verify")
    elif files.log is None:
        yield initializing("log", "there is no log yet")
    else:
        yield healthy("log", "the log can be read")
    size = files.log_bytes
    if size is None:
        return
    found = f"the log takes {_gib(size)}, the limit is {_gib(alerts.log_bytes)}"
    hint = "Run: tailrace log pins. A reader that is disconnected keeps the log."
    if motion.exceeds("log_size", size, alerts.log_bytes):
        yield error("log_size", found, hint)
    elif motion.exceeds("log_size", size, alerts.log_bytes * _NEARLY, severity="warning"):
        yield warning("log_size", found, hint)
    else:
        yield healthy("log_size", found)


def _disk(disk: DiskFact, motion: Motion, alerts: Alerts) -> Result:
    name, needed = disk.folder, alerts.disk_free_percent
    free = 100.0 * disk.free_bytes / max(disk.total_bytes, 1)
    found = f"{free:.1f} % of the disk of the {name} folder is free"
    hint = "Make space: a full disk stops capture, and PostgreSQL keeps its WAL."
    if motion.exceeds("disk", 100 - free, 100 - needed / 2, subject=name) or not disk.free_bytes:
        return error("disk", found, hint, name)
    if motion.exceeds("disk", 100 - free, 100 - needed, severity="warning", subject=name):
        return warning("disk", found, hint, name)
    return healthy("disk", found, name)


def _memory(files: FileFacts, motion: Motion, alerts: Alerts) -> Iterator[Result]:
    used = files.memory_bytes
    limit = alerts.memory_bytes or int((files.memory_limit_bytes or 0) * _MEMORY_SHARE)
    if used is None or not limit:
        return
    found = f"the processes take {_gib(used)} of memory, the limit is {_gib(limit)}"
    if motion.exceeds("memory", used, limit):
        yield error("memory", found, "Lower `spark.memory`, or give the machine more.")
    else:
        yield healthy("memory", found)


def _certificate(certificate: CertificateFact, now: float, alerts: Alerts) -> Result:
    key, ends_at = certificate.key, certificate.ends_at
    hint = "Replace the file, then send SIGHUP to `tailrace run`."
    if ends_at is None:
        return error("certificate", f"the file {certificate.error}", hint, key)
    days = (ends_at - now) / _DAY_S
    if days <= 0:
        return error("certificate", "has expired", hint, key)
    if days < alerts.certificate_days:
        return warning("certificate", f"expires in {days:.1f} days", hint, key)
    return healthy("certificate", f"expires in {days:.0f} days", key)


def _replicas(facts: Facts, files: FileFacts) -> Iterator[Result]:
    if files.quorum is not None:
        yield (
            healthy("quorum", "enough followers are connected")
            if files.quorum
            else error(
                "quorum", "fewer followers than the quorum are connected: PostgreSQL keeps its WAL",
                "Start the followers, or lower `replication.quorum`.",
            )
        )  # fmt: skip
    for follower in files.followers:
        yield (
            healthy("follower", follower.state or "connected", follower.address)
            if follower.connected
            else warning(
                "follower", f"not connected: {follower.state or 'unknown'}",
                "Check the machine and the network to it.", follower.address,
            )
        )  # fmt: skip
    if facts.follower and files.leader_connected is not None:
        yield (
            healthy("leader", "a leader is connected")
            if files.leader_connected
            else error("leader", "no leader is connected", "See: tailrace takeover --help")
        )


def _gib(count: int) -> str:
    return f"{count / 2**30:,.2f} GiB"
