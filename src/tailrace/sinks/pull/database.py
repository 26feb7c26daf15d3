"""The file of a pipeline's messages that consumers have not acknowledged.

`messages` has what decides about deliveries, and stays small; `bodies` has what consumers receive.
Both have one row per message. `seq` counts messages in the order in which they came.

| state     | the message                                   | `at`                         |
|-----------|-----------------------------------------------|------------------------------|
| WAITING   | may be delivered, as soon as it is `first`    | -                            |
| OUT       | is delivered, and not acknowledged            | until when it is invisible   |
| DELAYED   | was rejected with a delay                     | when it may be delivered     |
| EXHAUSTED | was delivered too often                       | -                            |

`first` is 1 if no earlier message must be acknowledged before (`succession`). Groups are hashes
(`tailrace.sinks.groups`) as the signed integers of SQLite: `own` of the key, `former` of an old
key, `scope` of the table. A message without a key is `whole` and has no `own`. Times are in
milliseconds.
"""

# ruff: noqa: S608 - all of it is text of this package

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.sqlite_file import SqliteFile

if TYPE_CHECKING:
    from pathlib import Path

WAITING, OUT, DELAYED, EXHAUSTED = range(4)
_FILE = "pull.db"
_POLL_S = 0.0005
_SCHEMA = f"""
CREATE TABLE messages (
  seq INTEGER PRIMARY KEY,
  scope INTEGER, own INTEGER, former INTEGER, whole INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  first INTEGER NOT NULL DEFAULT 0, state INTEGER NOT NULL DEFAULT {WAITING},
  at INTEGER NOT NULL DEFAULT 0, token INTEGER, deliveries INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX ready ON messages (seq) WHERE first AND state = {WAITING};
CREATE INDEX leases ON messages (at) WHERE state = {OUT};
CREATE INDEX delays ON messages (at) WHERE state = {DELAYED};
CREATE INDEX exhausted ON messages (seq) WHERE state = {EXHAUSTED};
CREATE INDEX by_own ON messages (own, seq);
CREATE INDEX by_former ON messages (former, seq) WHERE former IS NOT NULL;
CREATE INDEX by_scope ON messages (scope, seq);
CREATE INDEX whole_tables ON messages (scope, seq) WHERE whole;
CREATE TABLE bodies (
  seq INTEGER PRIMARY KEY, lsn INTEGER NOT NULL, ordinal INTEGER NOT NULL,
  destination TEXT NOT NULL, id TEXT NOT NULL, key BLOB, payload BLOB NOT NULL,
  headers TEXT, committed_at INTEGER NOT NULL, arrived_at INTEGER NOT NULL
);
CREATE TABLE totals (
  last_seq INTEGER NOT NULL, messages INTEGER NOT NULL, bytes INTEGER NOT NULL,
  out INTEGER NOT NULL, exhausted INTEGER NOT NULL,
  delivered INTEGER NOT NULL, redelivered INTEGER NOT NULL, acknowledged INTEGER NOT NULL
);
INSERT INTO totals VALUES (0, 0, 0, 0, 0, 0, 0, 0);
CREATE TABLE positions (lane INTEGER PRIMARY KEY, owner TEXT NOT NULL, position TEXT);
"""


def store_of(data: Path, pipeline: str) -> Path:
    """The file of a pipeline in a data folder."""
    return in_folder(data / "sinks" / pipeline)


def in_folder(folder: Path) -> Path:
    """The file in the folder of a sink."""
    return folder / _FILE


class PullDatabase(SqliteFile):
    """The open file."""

    content = "the messages"
    schema = _SCHEMA
    pragmas = ("cache_size = -32768", "temp_store = MEMORY", "wal_autocheckpoint = 4000")

    def begin(self) -> None:
        """Begin a transaction that writes. Transactions are short: this waits in small steps.

        SQLite's own steps grow to 0.1 s, far longer than a transaction.
        """
        self.connection.execute("PRAGMA busy_timeout = 0")
        until = time.monotonic() + self.lock_timeout_s
        while True:
            try:
                self.connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > until:
                    raise
            else:
                return
            time.sleep(_POLL_S)

    def totals(self) -> Totals:
        """How much the file has."""
        with self.translated():
            return Totals(*self.connection.execute("SELECT * FROM totals").fetchone())


@dataclass(frozen=True, slots=True)
class Totals:
    """The messages of a file, and what has become of others."""

    last_seq: int = 0
    messages: int = 0
    bytes: int = 0
    out: int = 0
    exhausted: int = 0
    delivered: int = 0
    """Deliveries of messages, repeated ones included."""
    redelivered: int = 0
    acknowledged: int = 0
