"""What survives a restart of the watchdog: history, alerts, and messages that are not delivered.

An SQLite file in the data folder. What decides is in memory: a disk that is full or hangs delays
the file and nothing else. So one thread writes, in order, and repeats a write until it succeeds;
every statement may run twice.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections import deque
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

import structlog

from tailrace.backoff import Backoff
from tailrace.errors import TailraceError
from tailrace.sqlite_file import SqliteFile, SqliteReader
from tailrace.watch.alerting import Alert
from tailrace.watch.message import Message
from tailrace.watch.result import Key

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

KEEP_S = 30 * 86_400.0
MAX_ROWS = 100_000
"""Of the history: a check that changes its state every few seconds must not fill the disk."""
_MAX_UNWRITTEN = 10_000
Statement = tuple[str, tuple[Any, ...]]


def path_of(data: Path) -> Path:
    """The file in a data folder."""
    return data / "watch" / "watch.db"


class Database(SqliteFile):
    """The tables."""

    content: ClassVar = "the history of the watchdog"
    version: ClassVar = 1
    lock_timeout_s: ClassVar = 5.0
    schema: ClassVar = """
        CREATE TABLE changes (
            id INTEGER PRIMARY KEY, at REAL NOT NULL, "check" TEXT NOT NULL, subject TEXT NOT NULL,
            state TEXT NOT NULL, before TEXT NOT NULL, summary TEXT NOT NULL);
        CREATE INDEX changes_at ON changes (at);
        CREATE TABLE alerts (
            id TEXT PRIMARY KEY, "check" TEXT NOT NULL, subject TEXT NOT NULL,
            severity TEXT NOT NULL, summary TEXT NOT NULL, hint TEXT NOT NULL,
            began_at REAL NOT NULL, fired_at REAL NOT NULL, repeated_at TEXT NOT NULL,
            resolved_at REAL) WITHOUT ROWID;
        CREATE TABLE messages (
            id TEXT PRIMARY KEY, at REAL NOT NULL, document TEXT NOT NULL) WITHOUT ROWID;
    """


class History(SqliteReader, Database):
    """The file, for commands and the HTTP endpoints. Without a file, everything is empty."""

    def firing(self) -> list[Alert]:
        """Alerts that have not recovered."""
        return self._alerts("WHERE resolved_at IS NULL ORDER BY fired_at", ())

    def recent(self, limit: int) -> list[Alert]:
        """The last alerts that have recovered, the newest first."""
        return self._alerts(
            "WHERE resolved_at IS NOT NULL ORDER BY resolved_at DESC LIMIT ?", (limit,)
        )

    def changes(self, limit: int, *, check: str = "", subject: str = "") -> list[dict[str, Any]]:
        """The last changes of states, the newest first."""
        if not self.exists:
            return []
        with self.translated():
            rows = self.connection.execute(
                'SELECT at, "check", subject, state, before, summary FROM changes '
                "WHERE (?1 = '' OR \"check\" = ?1) AND (?2 = '' OR subject = ?2) "
                "ORDER BY id DESC LIMIT ?3",
                (check, subject, limit),
            ).fetchall()
        names = ("at", "check", "subject", "state", "before", "summary")
        return [dict(zip(names, row, strict=True)) for row in rows]

    def messages(self) -> list[Message]:
        """Messages that are not delivered, the oldest first."""
        if not self.exists:
            return []
        with self.translated():
            rows = self.connection.execute(
                "SELECT document FROM messages ORDER BY at, id"
            ).fetchall()
        found = []
        for (document,) in rows:
            # Another release may know other fields.
            with contextlib.suppress(TypeError, ValueError):
                found.append(Message(**json.loads(document)))
        return found

    def _alerts(self, condition: str, values: tuple[object, ...]) -> list[Alert]:
        if not self.exists:
            return []
        with self.translated():
            rows = self.connection.execute(
                'SELECT id, "check", subject, severity, summary, hint, began_at, fired_at, '  # noqa: S608
                f"repeated_at, resolved_at FROM alerts {condition}",
                values,
            ).fetchall()
        return [
            Alert(
                id=row[0], key=Key(row[1], row[2]), severity=row[3], summary=row[4], hint=row[5],
                began_at=row[6], fired_at=row[7], repeated_at=json.loads(row[8]),
                resolved_at=row[9],
            )
            for row in rows
        ]  # fmt: skip


def change(at: float, key: Key, *, state: str, before: str, summary: str) -> Statement:
    """Note a change of a state."""
    return (
        'INSERT INTO changes (at, "check", subject, state, before, summary) VALUES (?,?,?,?,?,?)',
        (at, key.check, key.subject, state, before, summary),
    )


def alert(each: Alert) -> Statement:
    """Note an alert as it is now."""
    return (
        "INSERT OR REPLACE INTO alerts VALUES (?,?,?,?,?,?,?,?,?,?)",
        (
            each.id, each.key.check, each.key.subject, each.severity, each.summary, each.hint,
            each.began_at, each.fired_at, json.dumps(dict(each.repeated_at)), each.resolved_at,
        ),
    )  # fmt: skip


def message(at: float, each: Message) -> Statement:
    """Keep a message until it is delivered."""
    return (
        "INSERT OR REPLACE INTO messages VALUES (?,?,?)",
        (each.id, at, json.dumps(asdict(each))),
    )


def delivered(each: Message) -> Statement:
    """Forget a message."""
    return "DELETE FROM messages WHERE id = ?", (each.id,)


def _prune(now: float) -> list[Statement]:
    """Remove what is older than the history, and what is more than it."""
    return [
        ("DELETE FROM changes WHERE at < ?", (now - KEEP_S,)),
        ("DELETE FROM changes WHERE id <= (SELECT max(id) FROM changes) - ?", (MAX_ROWS,)),
        ("DELETE FROM alerts WHERE resolved_at < ?", (now - KEEP_S,)),
    ]


class Writer:
    """Writes in a thread, in order, for as long as it takes. `error` says why it cannot."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._given: queue.SimpleQueue[Sequence[Statement] | None] = queue.SimpleQueue()
        self._unwritten: deque[Statement] = deque(maxlen=_MAX_UNWRITTEN)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self.error = ""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def write(self, statements: Sequence[Statement]) -> None:
        """Write these, in one transaction, soon."""
        if statements:
            self._given.put(statements)

    def prune(self, now: float) -> None:
        """Remove what is too old."""
        self.write(_prune(now))

    def close(self, timeout_s: float) -> None:
        """Write what was given, unless that takes too long."""
        self._stop.set()
        self._given.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        backoff = Backoff(first_s=0.5, max_s=30.0)
        while True:
            given = self._given.get()
            self._unwritten.extend(given or ())
            while not self._given.empty():
                self._unwritten.extend(self._given.get() or ())
            while self._unwritten and not self._flush():
                if self._stop.wait(backoff.next_s()):
                    return
            backoff.reset()
            if self._stop.is_set() and self._given.empty():
                return

    def _flush(self) -> bool:
        statements = tuple(self._unwritten)
        try:
            with Database(self._path, write=True) as database, database.transaction() as connection:
                for sql, values in statements:
                    connection.execute(sql, values)
        except (TailraceError, OSError) as error:
            code = error.code if isinstance(error, TailraceError) else type(error).__name__
            if not self.error:
                structlog.get_logger().error("watch.history_failed", code=code, reason=str(error))
            self.error = code
            return False
        self.error = ""
        for _ in statements:
            self._unwritten.popleft()
        return True
