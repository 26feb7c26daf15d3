"""Facts of a healthy system, for tests that change one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tailrace.config import Alerts
from tailrace.position import Lsn, Position
from tailrace.watch.evaluation import evaluate
from tailrace.watch.facts import (
    DiskFact,
    Facts,
    FileFacts,
    LogFact,
    PipelineFact,
    ProcessFact,
    Report,
    SourceFacts,
)
from tailrace.watch.motion import Motion
from tailrace.watch.result import Key, Result

END = Position(Lsn(1000), 0)
CAPTURE = Report(pid=2, age_s=1, alive=True, state="streaming", content={"bytes": 5})
SPARK = Report(pid=3, age_s=1, alive=True, state="running")
PIPELINE = PipelineFact(name="orders", state="running", position=END, parked=0, delivered=5)
LOG = LogFact(end=END, end_lsn=Lsn(1010), committed_at=100.0)
FILES = FileFacts(
    run=Report(pid=1, age_s=1, alive=True, state="running"),
    reports={"capture": CAPTURE, "pipelines": SPARK},
    processes=(
        ProcessFact(name="capture", state="running", pid=2),
        ProcessFact(name="pipelines", state="running", pid=3),
    ),
    pipelines=(PIPELINE,),
    log=LOG,
    log_bytes=1000,
    disks=(DiskFact(folder="log", free_bytes=50, total_bytes=100),),
    memory_bytes=100,
    memory_limit_bytes=1000,
)
SOURCE = SourceFacts(
    wal_end=Lsn(1010),
    slot_exists=True,
    active=True,
    confirmed=Lsn(1010),
    kept_wal_bytes=100,
    publication_exists=True,
    tables=2,
)
FACTS = Facts(now=1000.0, time=2000.0, running_s=100.0, files=FILES, source=SOURCE)
ALERTS = Alerts(heartbeat_s=10, stalled_s=60, lag_s=300, for_s=10)


def files(**more: Any) -> Facts:
    """The healthy system with other files."""
    return replace(FACTS, files=replace(FILES, **more))


def source(**more: Any) -> Facts:
    """The healthy system with another answer of PostgreSQL."""
    return replace(FACTS, source=replace(SOURCE, **more))


def pipeline(**more: Any) -> Facts:
    """The healthy system with another pipeline."""
    return files(pipelines=(replace(PIPELINE, **more),))


def results(facts: Facts, motion: Motion | None = None, **alerts: Any) -> dict[Key, Result]:
    """What the checks say."""
    return evaluate(facts, motion or Motion(), ALERTS.model_copy(update=alerts))


def state(facts: Facts, check: str, subject: str = "", **alerts: Any) -> str:
    """The state of one check; empty without a result."""
    found = results(facts, **alerts).get(Key(check, subject))
    return str(found.state) if found else ""
