"""The SQLite file of a pipeline's parked messages.

The planner of the pipeline's query is the only writer (`store`). Commands and the HTTP endpoints
read at the same time (`listing`). Payloads have a table of their own, so that lists read little.

A parked message is identified by the history of its position and its first position. `wanted` is
the order that it is to be retried for. Groups are hashes (`tailrace.sinks.groups`), as the signed
integers of SQLite; the messages of each are counted, so that planning does not read them all.
"""

# ruff: noqa: S608 - statements consist of text of this package

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tailrace.sqlite_file import SqliteFile

if TYPE_CHECKING:
    from collections.abc import Mapping

_MESSAGES = """
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

_GROUPS = """
CREATE TABLE groups (
  history TEXT NOT NULL, kind TEXT NOT NULL, hash INTEGER NOT NULL, messages INTEGER NOT NULL,
  PRIMARY KEY (history, kind, hash)
) WITHOUT ROWID;
CREATE TABLE group_changes (count INTEGER NOT NULL);
INSERT INTO group_changes VALUES (0);
CREATE TRIGGER group_added AFTER INSERT ON groups BEGIN
  UPDATE group_changes SET count = count + 1;
END;
CREATE TRIGGER group_removed AFTER DELETE ON groups BEGIN
  UPDATE group_changes SET count = count + 1;
END;
CREATE INDEX emptied ON groups (messages) WHERE messages = 0;
CREATE INDEX by_order ON parked (wanted) WHERE wanted IS NOT NULL;
"""


def counting(messages: str, *, sign: int = 1) -> str:
    """The statement that adds the groups of some messages, or subtracts them before a removal."""
    return f"""
INSERT INTO groups SELECT history, kind, hash, {sign} * count(*) FROM (
    SELECT history, 'key' AS kind, own_group AS hash FROM parked WHERE {messages}
    UNION ALL SELECT history, 'key', former_group FROM parked
      WHERE former_group <> own_group AND {messages}
    UNION ALL SELECT history, 'table', scope FROM parked WHERE {messages}
    UNION ALL SELECT history, 'whole', scope FROM parked WHERE whole AND {messages}
  ) WHERE TRUE GROUP BY history, kind, hash
  ON CONFLICT DO UPDATE SET messages = messages + excluded.messages;
"""


class Database(SqliteFile):
    """An open file. In a `with` block it is closed at the end."""

    content = "the parked messages"
    schema = _MESSAGES + _GROUPS
    version = 2
    upgrades: ClassVar[Mapping[int, str]] = {1: _GROUPS + counting("TRUE")}
