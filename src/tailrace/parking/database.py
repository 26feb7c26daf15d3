"""The SQLite file of a pipeline's parked messages.

The planner of the pipeline's query is the only writer (`store`). Commands and the HTTP endpoints
read at the same time (`listing`). Payloads have a table of their own, so that lists read little.

A parked message is identified by the history of its position and its first position. `wanted` is
the order that it is to be retried for. Groups are hashes (`tailrace.sinks.groups`), as the signed
integers of SQLite.
"""

from __future__ import annotations

from tailrace.sqlite_file import SqliteFile

_SCHEMA = """
CREATE TABLE parked (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  history TEXT NOT NULL, first_lsn INTEGER NOT NULL, first_ordinal INTEGER NOT NULL,
  destination TEXT NOT NULL, id TEXT NOT NULL, key BLOB, former BLOB,
  scope INTEGER NOT NULL, own_group INTEGER NOT NULL, former_group INTEGER NOT NULL,
  whole INTEGER NOT NULL, bytes INTEGER NOT NULL, committed_at INTEGER NOT NULL,
  held INTEGER NOT NULL, attempts INTEGER NOT NULL,
  parked_at INTEGER NOT NULL, last_at INTEGER NOT NULL,
  first_code TEXT NOT NULL, first_reason TEXT NOT NULL,
  code TEXT NOT NULL, reason TEXT NOT NULL, hint TEXT NOT NULL, response TEXT NOT NULL,
  wanted TEXT,
  UNIQUE (history, first_lsn, first_ordinal)
);
CREATE TABLE payloads (seq INTEGER PRIMARY KEY, payload BLOB NOT NULL, headers TEXT,
  group_own BLOB, group_former BLOB);
CREATE INDEX by_destination ON parked (destination, seq);
CREATE INDEX by_code ON parked (code, seq);
CREATE INDEX by_id ON parked (id);
CREATE INDEX by_key ON parked (key, seq);
CREATE INDEX by_own_group ON parked (own_group);
CREATE INDEX by_former_group ON parked (former_group);
CREATE INDEX whole_tables ON parked (scope) WHERE whole;
CREATE INDEX by_wanted ON parked (history, first_lsn, first_ordinal) WHERE wanted IS NOT NULL;
CREATE TABLE totals (messages INTEGER NOT NULL, held INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0, 0);
CREATE TRIGGER removed AFTER DELETE ON parked BEGIN
  UPDATE totals SET messages = messages - 1, held = held - OLD.held, bytes = bytes - OLD.bytes;
  DELETE FROM payloads WHERE seq = OLD.seq;
END;
CREATE TRIGGER changed AFTER UPDATE OF held ON parked BEGIN
  UPDATE totals SET held = held + NEW.held - OLD.held;
END;
CREATE TABLE orders (
  id TEXT PRIMARY KEY, action TEXT NOT NULL, matched INTEGER NOT NULL,
  delivered INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0
);
"""


class Database(SqliteFile):
    """An open file. In a `with` block it is closed at the end."""

    content = "the parked messages"
    schema = _SCHEMA
