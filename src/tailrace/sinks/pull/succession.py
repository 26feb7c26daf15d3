"""SQL that says which message may be delivered after which.

A message must wait for all earlier ones of its key, and of its old key if an update changed it. A
message without a key (`whole`) waits for all earlier ones of its table, and all later ones of the
table wait for it. A message that waits for none is `first`. Columns of groups that are NULL have no
order.

Every condition looks at one neighbour in an index: its cost does not grow with the messages. The
only exception is a message without a key: once it is removed, all that waited for it are looked at,
each once.
"""

# ruff: noqa: S608 - all of it is text of this package

from __future__ import annotations

_GROUPS = ("own", "former")
_PAIRS = [(theirs, ours) for ours in _GROUPS for theirs in _GROUPS]


def _earlier(condition: str) -> str:
    return f"NOT EXISTS (SELECT 1 FROM messages e WHERE {condition} AND e.seq < m.seq)"


FIRST = (
    f"CASE WHEN m.whole THEN {_earlier('e.scope = m.scope')} ELSE "
    + " AND ".join(
        [
            *(_earlier(f"e.{theirs} = m.{ours}") for theirs, ours in _PAIRS),
            _earlier("e.whole AND e.scope = m.scope"),
        ]
    )
    + " END"
)
"""Whether message `m` waits for no other."""


def _next(condition: str) -> str:
    return (
        f"(SELECT n.seq FROM messages n WHERE {condition} AND n.seq > m.seq ORDER BY n.seq LIMIT 1)"
    )


NEXT = (
    *(_next(f"n.{theirs} = m.{ours}") for theirs, ours in _PAIRS),
    _next("m.whole AND n.scope = m.scope"),
)
"""The messages that come after `m` in its groups: columns, NULL where there is none."""
NEXT_WHOLE = _next("n.whole AND NOT m.whole AND n.scope = m.scope")
"""The next message without a key, of the table of a message with one."""


def _last(condition: str) -> str:
    return (
        f"(SELECT n.seq FROM messages n WHERE {condition} AND n.seq < m.seq "
        "ORDER BY n.seq DESC LIMIT 1)"
    )


BEFORE = (
    *(_last(f"n.{theirs} = m.{ours}") for theirs, ours in _PAIRS),
    _last("m.whole AND n.scope = m.scope"),
)
"""The messages that come before `m` in its groups."""
LAST_WHOLE = _last("n.whole AND NOT m.whole AND n.scope = m.scope")
"""The last message without a key before a message with one."""
