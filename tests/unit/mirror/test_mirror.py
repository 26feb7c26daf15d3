"""A mirror with a source and a target by script: bootstrap, follow, retry, new snapshot."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from tailrace.backoff import Backoff
from tailrace.change import Op
from tailrace.client import Change
from tailrace.client.names import Table
from tailrace.errors import (
    ConfigError,
    DivergedError,
    PositionLostError,
    PostgresUnreachableError,
    SinkUnreachableError,
    StorageError,
)
from tailrace.mirror import Mirror, Phase, Status, cancel_all
from tailrace.mirror.layout import Layout
from tailrace.mirror.targets.target import StoredMirror
from tailrace.position import Lsn
from tests.unit.mirror.sources.fake import (
    AT,
    USERS,
    FakeChunk,
    FakeSource,
    batch,
    column,
    schema,
    state,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

LAYOUT = Layout.of(USERS, ("id",))
END = ConfigError("end of the script")
SNAPSHOT = [FakeChunk(snapshot_id="s", content=[{"id": 1, "name": "a"}])], 1


class FakeTarget:
    """Records its calls. `errors` are raised by `open`, in order."""

    form: ClassVar[Any] = "rows"

    def __init__(self, stored: StoredMirror | None = None, errors: Sequence[Any] = ()) -> None:
        self.stored = stored
        self.calls: list[tuple[Any, ...]] = []
        self._errors = [*errors]

    def open(self) -> StoredMirror | None:
        self.calls.append(("open",))
        if self._errors and (error := self._errors.pop(0)) is not None:
            raise error
        return self.stored

    def convert(self, columns: Sequence[list[Any]]) -> Any:
        return columns

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))

    @property
    def names(self) -> list[str]:
        return [call[0] for call in self.calls]


class Time:
    """A clock that advances by one second per reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def insert(number: int, **more: Any) -> Change:
    data = {"id": number, "name": "x"} | more.pop("data", {})
    return Change(
        op=Op.INSERT, table=Table("public", "users"), data=data, lsn=Lsn(number), xid=number,
        id=f"{number}-0", timestamp=AT, **more,
    )  # fmt: skip


def run(source: FakeSource, target: FakeTarget, **options: Any) -> tuple[Mirror, list[str]]:
    """Run a mirror until the script ends; what it reported."""
    events: list[str] = []
    status = Status(table="users", on_event=lambda _, text: events.append(text))
    backoff = Backoff(first_s=0.0, max_s=0.0)
    mirror = Mirror(source, "users", target, status=status, backoff=backoff, **options)
    with pytest.raises(ConfigError, match="end of the script"):
        asyncio.run(mirror.run())
    assert target.names[-1] == "close"
    return mirror, events


def test_snapshot_is_loaded_and_changes_are_committed_with_their_state() -> None:
    source = FakeSource(snapshots=[SNAPSHOT], followed=[[batch(insert(2)), END]])
    target = FakeTarget()
    mirror, events = run(source, target)
    assert target.names == [
        "open", "begin", "load", "finish", "apply", "commit", "idle", "close",
    ]  # fmt: skip
    assert target.calls[2] == ("load", [[1], ["a"]])
    assert target.calls[4][1].rows == [{"id": 2, "name": "x"}]
    assert target.calls[5] == ("commit", state(1).dump())
    status = mirror.status
    assert (status.rows, status.snapshots, status.changes) == (1, 1, 1)
    assert (status.phase, status.committed_at) == (Phase.FOLLOWING, AT)
    assert events[0] == "requesting a snapshot"
    assert events[1].startswith("1 rows loaded in ")
    assert events[2] == "following"


def test_mirror_resumes_from_the_stored_state() -> None:
    stored = StoredMirror(state=state(7).dump(), layout=LAYOUT)
    source = FakeSource(followed=[[END]])
    run(source, FakeTarget(stored))
    assert source.states == [state(7)]


def test_fresh_ignores_the_stored_state() -> None:
    stored = StoredMirror(state=state(7).dump(), layout=LAYOUT)
    source = FakeSource(snapshots=[SNAPSHOT], followed=[[END]])
    target = FakeTarget(stored)
    run(source, target, fresh=True)
    assert "finish" in target.names
    assert source.states[0].sequence == 0


def test_superseded_snapshot_begins_again() -> None:
    chunks = [
        FakeChunk(snapshot_id="first", content=[{"id": 1, "name": "a"}]),
        FakeChunk(snapshot_id="second", content=[{"id": 2, "name": "b"}]),
        FakeChunk(snapshot_id="second", content=[{"id": 3, "name": "c"}]),
    ]
    source = FakeSource(snapshots=[(chunks, 2)], followed=[[END]])
    target = FakeTarget()
    mirror, _ = run(source, target)
    assert target.names[:6] == ["open", "begin", "load", "begin", "load", "load"]
    assert mirror.status.rows == 2


def test_empty_table_is_created() -> None:
    target = FakeTarget()
    run(FakeSource(snapshots=[([], 0)], followed=[[END]]), target)
    assert target.names == ["open", "begin", "finish", "close"]


def test_missing_rows_of_a_snapshot_are_an_error() -> None:
    target = FakeTarget()
    mirror = Mirror(FakeSource(snapshots=[(SNAPSHOT[0], 2)]), "users", target)
    with pytest.raises(PositionLostError, match="has 2 rows, the stream has 1"):
        asyncio.run(mirror.run())
    assert "finish" not in target.names


def test_lost_position_causes_a_new_snapshot() -> None:
    source = FakeSource(
        snapshots=[SNAPSHOT, SNAPSHOT], followed=[[PositionLostError("gone")], [END]]
    )
    target = FakeTarget()
    mirror, events = run(source, target)
    assert mirror.status.snapshots == 2
    assert "position lost, taking a new snapshot: gone" in events
    assert target.names.count("rollback") == 1


def test_snapshots_that_do_not_help_come_slowly() -> None:
    """GIVEN a stream that a snapshot cannot be followed in WHEN snapshots are taken again THEN the
    mirror waits before each, longer and longer, until a change is applied."""
    lost = PositionLostError("gone")
    waits: list[float] = []

    class Recorded(Backoff):
        def next_s(self) -> float:
            waits.append(super().next_s())
            return 0.0

    source = FakeSource(
        snapshots=[SNAPSHOT] * 5, followed=[[lost], [lost], [lost], [batch(insert(2)), lost], [END]]
    )
    status = Status(table="users")
    mirror = Mirror(source, "users", FakeTarget(), status=status, backoff=Recorded(first_s=1.0))
    with pytest.raises(ConfigError, match="end of the script"):
        asyncio.run(mirror.run())
    assert status.snapshots == 5
    assert len(waits) == 3


def test_another_history_stops_the_mirror() -> None:
    """GIVEN a mirror that follows WHEN its pipeline delivers another history, as after a restore
    THEN the mirror is DIVERGED, and a fresh one records the new history."""
    source = FakeSource(
        snapshots=[SNAPSHOT], followed=[[*(batch(insert(n)) for n in range(2, 30)), END]]
    )

    class Target(FakeTarget):
        def commit(self, text: str) -> None:
            self.calls.append(("commit", text))
            source.claim = "bb 2 1794743604"

    target = Target()
    mirror = Mirror(source, "users", target, clock=Time())
    with pytest.raises(DivergedError, match="another history") as raised:
        asyncio.run(mirror.run())
    assert "--fresh" in raised.value.hint
    assert 0 < target.names.count("commit") < 28
    source.snapshots, source.followed = [SNAPSHOT], [[END]]
    run(source, target, fresh=True)
    assert source.states[-1].history == "bb"


def test_recreated_table_causes_a_new_snapshot() -> None:
    relations = [insert(2, relation=16392)], [insert(3, relation=16400)]
    source = FakeSource(
        snapshots=[SNAPSHOT, SNAPSHOT],
        followed=[[batch(*relations[0]), batch(*relations[1])], [END]],
    )
    mirror, events = run(source, FakeTarget())
    assert mirror.status.snapshots == 2
    assert "the table was dropped and created again: taking a new snapshot" in events


def test_new_column_alters_the_target_before_its_first_change() -> None:
    source = FakeSource(
        snapshots=[SNAPSHOT],
        followed=[[batch(insert(2), insert(3, data={"x": "y"})), END]],
    )

    class Target(FakeTarget):
        def apply(self, *arguments: Any) -> None:
            self.calls.append(("apply", *arguments))
            source.schema_ = schema(*USERS.columns, column("x"))

    target = Target()
    _, events = run(source, target)
    assert target.names[4:8] == ["apply", "alter", "apply", "commit"]
    assert target.calls[5][1].names == ("id", "name", "x")
    assert "the table's columns are now id, name, x" in events


def test_part_of_a_transaction_is_not_committed() -> None:
    parts = [batch(insert(2), ends=False, pending=1), batch(insert(3), sequence=2)]
    target = FakeTarget()
    mirror, _ = run(FakeSource(snapshots=[SNAPSHOT], followed=[[*parts, END]]), target)
    assert target.names[4:7] == ["apply", "apply", "commit"]
    assert mirror.status.changes == 2


def test_table_without_a_key_replays_changes_without_backfilled_rows() -> None:
    read = Change(
        op=Op.READ, table=Table("public", "users"), data={"id": 1, "name": "a"}, lsn=Lsn(1),
        xid=None, id="s-1", timestamp=AT,
    )  # fmt: skip
    target = FakeTarget()
    source = FakeSource(snapshots=[SNAPSHOT], followed=[[batch(read, insert(2)), END]])
    run(source, target, key=())
    [replayed] = [call[1] for call in target.calls if call[0] == "replay"]
    assert [change.data["id"] for change in replayed] == [2]


def test_transient_error_after_following_is_retried() -> None:
    stored = StoredMirror(state=state(7).dump(), layout=LAYOUT)
    errors = [None, PostgresUnreachableError("down"), PostgresUnreachableError("down")]
    source = FakeSource(followed=[[SinkUnreachableError("cut")], [END]])
    target = FakeTarget(stored, errors)
    _, events = run(source, target)
    assert target.names.count("open") == 4
    assert events[1:4] == [
        "SINK_UNREACHABLE: cut; retrying in 0.0 s",
        "UNREACHABLE: down; retrying in 0.0 s",
        "UNREACHABLE: down; retrying in 0.0 s",
    ]


def failed_at_start(error: Exception, clock: Any) -> Mirror:
    source = FakeSource(snapshots=[error] * 100)
    backoff = Backoff(first_s=0.0, max_s=0.0)
    mirror = Mirror(source, "users", FakeTarget(), backoff=backoff, clock=clock)
    with pytest.raises(type(error)):
        asyncio.run(mirror.run())
    return mirror


def test_pipeline_that_is_starting_is_waited_for_ten_seconds() -> None:
    clock = Time()
    mirror = failed_at_start(SinkUnreachableError("no pipeline answers"), clock)
    assert mirror.status.phase is Phase.BOOTSTRAP
    assert 10 < clock.now < 20


@pytest.mark.parametrize(
    "error", [PostgresUnreachableError("down"), StorageError("full"), ConfigError("no such table")]
)
def test_other_errors_at_the_start_are_raised(error: Exception) -> None:
    mirror = failed_at_start(error, Time())
    assert mirror.status.phase is Phase.BOOTSTRAP


def test_cancel_all_repeats_a_lost_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    from tailrace.mirror import mirror as module  # noqa: PLC0415 - shadowed by the class

    monkeypatch.setattr(module, "_CANCEL_S", 0.01)

    async def stubborn() -> None:
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
        await asyncio.Event().wait()

    async def check() -> None:
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        await cancel_all([task])
        assert task.cancelled()

    asyncio.run(check())
