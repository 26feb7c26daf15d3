"""A snapshot maker whose PostgreSQL, stream and Spark are replaced by lists; nothing waits."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from tailrace.config import Config
from tailrace.errors import (
    PostgresUnreachableError,
    SchemaChangedError,
    SnapshotLostError,
)
from tailrace.position import Lsn
from tailrace.postgres.names import TableName
from tailrace.snapshot.export import Bound, Exported
from tailrace.snapshot.job import Published
from tailrace.snapshot.service.maker import Maker
from tailrace.snapshot.table import Stretch
from tailrace.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.snapshot.job import Wave
    from tailrace.snapshot.service.record import Record

ITEMS = TableName("public", "items")
STRETCHES = 5


class Stopping(threading.Event):
    """An event that notes how long was waited, and never waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        return self.is_set()


class Bench:
    """A maker, its exported snapshots and its stream."""

    def __init__(self, folder: Path) -> None:
        sink = {"type": "nats", "url": "nats://127.0.0.1:1"}
        pipeline = {"sink": sink, "snapshots": {"parallel": 2}}
        self.config = Config.model_validate({"data": str(folder), "pipelines": {"p": pipeline}})
        self.folder = folder / "snapshots" / "p"
        self.replaceable = True
        self.exports: list[Exported] = []
        self.lost: set[str] = set()
        """Exported snapshots that have ended; also before anything was read from them."""
        self.released: list[str] = []
        self.stream: list[str] = []
        self.waves: list[Wave] = []
        self.errors: list[Exception] = []
        """Raised by the next waves, one each."""
        self.send_errors: list[Exception] = []
        self.bound_errors: list[Exception] = []
        self.promoted = False
        """Whether a standby was promoted when the next snapshot is about to be complete."""
        self.hidden_commits = 0
        """How many snapshots lack a commit from before the pipeline."""
        self.stop_after = -1
        self.fingerprint = "f"
        self.stopping = Stopping()

    def maker(self) -> Maker:
        self.stopping = Stopping()
        maker = Maker(
            self.config, "p", SimpleNamespace(), self.publish, self.stopping, now=lambda: 1000.0  # type: ignore[arg-type]
        )  # fmt: skip
        service: Any = maker
        service._jobs = self
        service._joined = SimpleNamespace(wait_for_writers=lambda *_: True)
        return maker

    def run(self, record: Record) -> Record:
        self.maker().run(record)
        return record

    # The exported snapshots.

    def keep(self, _dsn: str, table: TableName, *, idle_s: float) -> Exported:
        assert idle_s > 60
        self.exports.append(
            Exported(
                name=f"export-{len(self.exports)}",
                table=table,
                visibility=Visibility(3, 3),
                lsn=Lsn(7),
                taken_at=datetime(2026, 1, 1, tzinfo=UTC),
                since=None,
            )
        )
        return self.exports[-1]

    @contextmanager
    def imported(self, _dsn: str, snapshot: Exported) -> Iterator[None]:
        if snapshot.name in self.lost:
            raise SnapshotLostError(f"snapshot {snapshot.name} no longer exists")
        yield

    def release(self, _dsn: str, snapshot: Exported) -> None:
        self.released.append(snapshot.name)

    def bound(self, *_: object) -> Bound:
        if self.bound_errors:
            raise self.bound_errors.pop(0)
        return Bound(Lsn(6), datetime(2026, 1, 1, tzinfo=UTC))

    def check_visible(self, *_: object) -> None:
        if self.hidden_commits:
            self.hidden_commits -= 1
            raise SnapshotLostError("the commit at 0/7 is not visible yet")

    def check_timeline(self, *_: object) -> None:
        if self.promoted:
            self.promoted = False
            self.lost.add(self.exports[-1].name)
            raise PostgresUnreachableError("the server is on timeline 1, the log is on timeline 2")

    # The jobs and their format.

    def create(self, record: Record, snapshot: Exported) -> Any:
        with self.imported("", snapshot):
            record.stretches = [Stretch(ITEMS, number) for number in range(STRETCHES)]
            record.parallel, record.fingerprint = 2, self.fingerprint
            return self._job(record, snapshot)

    def resume(self, record: Record, snapshot: Exported) -> Any:
        with self.imported("", snapshot):
            if record.fingerprint != self.fingerprint:
                raise SchemaChangedError("columns have changed")
            return self._job(record, snapshot)

    def _job(self, record: Record, snapshot: Exported) -> Any:
        table = SimpleNamespace(relation=None)
        return SimpleNamespace(format=self.format(record), snapshot=snapshot, table=table)

    def format(self, record: Record) -> Any:
        name, replaceable = record.id, self.replaceable
        return SimpleNamespace(
            id=name,
            replaceable=replaceable,
            has_head=lambda _: replaceable or f"{name}-head" in self.stream,
            head=lambda *_: f"{name}-head",
            tail=lambda _, totals: f"{name}-tail {totals.rows} {totals.supersedes}",
            has_tail=lambda _: any(each.startswith(f"{name}-tail") for each in self.stream),
            failed=lambda error, *, begun: f"{name}-failed {error}",
        )

    @property
    def sink(self) -> Any:
        return SimpleNamespace(stream=SimpleNamespace(name="INIT"))

    # The stream.

    def publisher(self, *_: object, **__: object) -> Publisher:
        return Publisher(self)

    def publish(self, job: Any, wave: Wave) -> Published:
        if self.errors:
            error = self.errors.pop(0)
            raise error
        with self.imported("", job.snapshot):
            self.waves.append(wave)
        if len(self.waves) == self.stop_after:
            self.stopping.set()
        count = len(wave.stretches)
        return Published(
            chunks=count, rows=10 * count, bytes=100 * count, beyond=wave.number + count, last=9
        )


class Publisher:
    """A connection to the stream."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def send(self, message: str) -> None:
        if self._bench.send_errors:
            raise self._bench.send_errors.pop(0)
        self._bench.stream.append(message)

    def last(self) -> int:
        return 8

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...
