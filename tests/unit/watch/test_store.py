"""What survives a restart, and what a disk that is full does not stop."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.errors import DiskFullError
from tailrace.watch import store
from tailrace.watch.alerting import Alert
from tailrace.watch.result import Key
from tests.unit.watch.test_channels import MESSAGE
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

ALERT = Alert(
    id="a1", key=Key("disk", "log"), severity="error", summary="full", hint="h", began_at=1.0,
    fired_at=2.0, repeated_at={"ops": 2.0},
)  # fmt: skip


def written(path: Path, statements: Sequence[store.Statement]) -> None:
    writer = store.Writer(path)
    writer.start()
    writer.write(statements)
    writer.close(30)
    assert writer.error == ""


def change(at: float, state: str = "error") -> store.Statement:
    return store.change(at, ALERT.key, state=state, before="healthy", summary="full")


def test_everything_is_read_back(tmp_path: Path) -> None:
    path = store.path_of(tmp_path)
    written(path, [change(1.0), store.alert(ALERT), store.message(2.0, MESSAGE)])
    with store.History(path) as history:
        assert history.firing() == [ALERT]
        assert history.recent(10) == []
        assert history.messages() == [MESSAGE]
        assert history.changes(10) == [
            {
                "at": 1.0, "check": "disk", "subject": "log", "state": "error",
                "before": "healthy", "summary": "full",
            }
        ]  # fmt: skip
        assert history.changes(10, check="slot") == []
    resolved = replace(ALERT, resolved_at=3.0)
    written(path, [store.alert(resolved), store.delivered(MESSAGE)])
    with store.History(path) as history:
        assert (history.firing(), history.recent(10), history.messages()) == ([], [resolved], [])


def test_messages_of_another_release_are_left(tmp_path: Path) -> None:
    """GIVEN a message with a field that this release does not know THEN the others are sent, and
    the watchdog starts."""
    path = store.path_of(tmp_path)
    later = ("INSERT INTO messages VALUES (?,?,?)", ("m0", 1.0, '{"id": "m0", "colour": "red"}'))
    written(path, [later, store.message(2.0, MESSAGE)])
    with store.History(path) as history:
        assert history.messages() == [MESSAGE]


def test_the_file_is_for_its_owner(tmp_path: Path) -> None:
    path = store.path_of(tmp_path / "data")
    written(path, [change(1.0)])
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_without_a_file_everything_is_empty(tmp_path: Path) -> None:
    with store.History(store.path_of(tmp_path)) as history:
        assert (history.firing(), history.recent(1)) == ([], [])
        assert (history.changes(1), history.messages()) == ([], [])


def test_history_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN more changes than are kept, some of them older than a month THEN the last ones stay."""
    monkeypatch.setattr(store, "MAX_ROWS", 3)
    path = store.path_of(tmp_path)
    now = store.KEEP_S * 2
    written(path, [change(1.0), *(change(now + number) for number in range(5))])
    old = replace(ALERT, id="old", resolved_at=1.0)
    written(path, [store.alert(ALERT), store.alert(old)])
    writer = store.Writer(path)
    writer.start()
    writer.prune(now + 10)
    writer.close(30)
    with store.History(path) as history:
        assert [each["at"] for each in history.changes(100)] == [now + 4, now + 3, now + 2]
        assert (history.firing(), history.recent(10)) == ([ALERT], [])


def test_a_full_disk_delays_the_history_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a disk without space WHEN there is some again THEN everything is written, in order."""
    path, full = store.path_of(tmp_path), [True]
    transaction = store.Database.transaction

    @contextlib.contextmanager
    def failing(self: store.Database):  # type: ignore[no-untyped-def]
        if full:
            raise DiskFullError("no space")
        with transaction(self) as connection:
            yield connection

    monkeypatch.setattr(store.Database, "transaction", failing)
    writer = store.Writer(path)
    writer.start()
    writer.write([change(1.0)])
    wait_for(lambda: writer.error == "DISK_FULL")
    writer.write([change(2.0)])
    full.clear()
    wait_for(lambda: not writer.error)
    writer.close(30)
    with store.History(path) as history:
        assert [each["at"] for each in history.changes(10)] == [2.0, 1.0]
