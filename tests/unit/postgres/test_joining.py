"""Which newly published tables wait for their writers, and how writers are described."""

from __future__ import annotations

import json
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.postgres import joining
from tailrace.postgres.joining import JoinedTables, Writer, wait_for_writers
from tailrace.postgres.names import TableName

if TYPE_CHECKING:
    from pathlib import Path

ITEMS = TableName("public", "items")


class Server:
    """A session whose queries answer from lists."""

    def __init__(self, member: int) -> None:
        self.info = SimpleNamespace(server_version=180000)
        self.member = member
        self.writers: list[list[tuple[Any, ...]]] = []
        self.looked = 0

    def execute(self, query: Any, _values: object) -> Any:
        if isinstance(query, bytes):
            return SimpleNamespace(fetchone=lambda: (self.member,))
        self.looked += 1
        rows = self.writers.pop(0) if self.writers else []
        return SimpleNamespace(fetchall=lambda: rows)


class Stopping(threading.Event):
    """An event that does not wait."""

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        return self.is_set()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server(16400)
    monkeypatch.setattr(joining, "connect", lambda _: nullcontext(server))
    return server


def test_each_member_is_waited_for_once(server: Server, tmp_path: Path) -> None:
    tables = JoinedTables("", "pub", tmp_path)
    assert tables.wait_for_writers(ITEMS, Stopping())
    assert server.looked == 2
    assert json.loads((tmp_path / "joined").read_text()) == {"public.items": 16400}
    assert JoinedTables("", "pub", tmp_path).wait_for_writers(ITEMS, Stopping())
    assert server.looked == 2
    # The table was removed and added again.
    server.member = 16500
    assert tables.wait_for_writers(ITEMS, Stopping())
    assert server.looked == 4


def test_a_publication_for_all_tables_never_waits(server: Server, tmp_path: Path) -> None:
    server.member = 0
    assert JoinedTables("", "pub", tmp_path).wait_for_writers(ITEMS, Stopping())
    assert (server.looked, (tmp_path / "joined").exists()) == (0, False)


def test_an_invalid_file_is_replaced(server: Server, tmp_path: Path) -> None:
    (tmp_path / "joined").write_text("[")
    assert JoinedTables("", "pub", tmp_path).wait_for_writers(ITEMS, Stopping())
    assert json.loads((tmp_path / "joined").read_text()) == {"public.items": 16400}


def test_a_stop_is_not_recorded(server: Server, tmp_path: Path) -> None:
    stopping = Stopping()
    stopping.set()
    server.writers = [[("1/2", 7, "", 1)]] * 9
    assert not JoinedTables("", "pub", tmp_path).wait_for_writers(ITEMS, stopping)
    assert not (tmp_path / "joined").exists()


def test_transactions_that_begin_later_are_not_waited_for(server: Server) -> None:
    first, later = ("1/2", 7, "psql", 3), ("1/3", 8, "", None)
    server.writers = [[first], [first, later], [first, later], [later]]
    reports: list[list[Writer]] = []
    assert wait_for_writers(server, ITEMS, Stopping(), reports.append)  # type: ignore[arg-type]
    # Reported at once, and then every ten seconds.
    assert [[writer.pid for writer in report] for report in reports] == [[7]]


@pytest.mark.parametrize(
    ("writer", "text"),
    [
        (Writer("1/2", 7, "psql", 3), "pid 7 (psql, writing for 3 s)"),
        (Writer("1/2", 7, "", None), "pid 7"),
        (Writer("-1/99", None, "", None), "a prepared transaction"),
    ],
)
def test_writers_as_text(writer: Writer, text: str) -> None:
    assert str(writer) == text
