"""Mode `records`: a newer message of a key replaces the one that waits.

The newer message takes the place of the older one, so that a row that changes all the time is
delivered as well. A message that is delivered and not acknowledged stays: the newer one follows it.
So do messages that tie keys together, which are never replaced: an update that changes a key, and a
message without a key. A key has at most two messages then.
"""

# ruff: noqa: S608 - values are parameters, and everything else is text of this package

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING, Any

from tailrace.sinks.pull.database import EXHAUSTED, OUT, WAITING
from tailrace.sinks.pull.succession import NEXT, NEXT_WHOLE

if TYPE_CHECKING:
    import sqlite3

_REPLACEABLE = f"""
SELECT m.seq, m.bytes, m.state FROM messages m
WHERE m.seq = (SELECT max(e.seq) FROM messages e WHERE e.own = ?) AND m.former IS NULL
AND m.state <> {OUT} AND coalesce({", ".join([*NEXT, NEXT_WHOLE])}) IS NULL"""
_BODY = (
    "UPDATE bodies SET lsn = ?, ordinal = ?, destination = ?, id = ?, key = ?, payload = ?, "
    "headers = ?, committed_at = ? WHERE seq = ?"
)
_MESSAGE = (
    "UPDATE messages SET bytes = ?, deliveries = 0, "
    f"state = CASE state WHEN {EXHAUSTED} THEN {WAITING} ELSE state END WHERE seq = ?"
)
_SCOPE, _OWN, _FORMER, _WHOLE, _BYTES = range(5)


class Latest:
    """Replaces messages of a store. `rows` are those of `tailrace.sinks.pull.intake`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def replace(self, messages: list[Any], bodies: list[Any]) -> tuple[list[Any], list[Any]]:
        """Replace what waits, in a transaction. Returns the messages that are to be added."""
        added: list[tuple[Any, Any]] = []
        newest: dict[int, int] = {}
        """Per key: the place in `added` of the message that a newer one replaces."""
        replaced: dict[int, tuple[int, Any, Any]] = {}
        """Per key: a message of the store, and what replaces it."""
        tied: set[int] = set()
        """Keys whose next message is added, and tables after a message without a key."""
        for message, body in zip(messages, bodies, strict=True):
            own, former, scope = message[_OWN], message[_FORMER], message[_SCOPE]
            if message[_WHOLE] or former is not None:
                # Whatever came before it keeps its place before it.
                newest = {} if message[_WHOLE] else newest
                for key in (own, former):
                    newest.pop(key, None)
                tied |= {scope} if message[_WHOLE] else {own, former}
            elif own is not None:
                if own in newest:
                    added[newest[own]] = (message, body)
                    continue
                if own not in tied and scope not in tied:
                    seq = replaced[own][0] if own in replaced else self._waiting(own)
                    if seq is not None:
                        replaced[own] = (seq, message, body)
                        continue
                newest[own] = len(added)
            added.append((message, body))
        self._update(list(replaced.values()))
        return [message for message, _ in added], [body for _, body in added]

    def _waiting(self, own: int) -> int | None:
        """The message of a key in the store that a newer one replaces."""
        found = self._connection.execute(_REPLACEABLE, (own,)).fetchone()
        return None if found is None else int(found[0])

    def _update(self, replaced: list[tuple[int, Any, Any]]) -> None:
        execute, executemany = self._connection.execute, self._connection.executemany
        for seq, message, _ in replaced:
            execute(
                "UPDATE totals SET (bytes, exhausted) = (SELECT totals.bytes - m.bytes + ?, "
                f"totals.exhausted - (m.state = {EXHAUSTED}) FROM messages m WHERE m.seq = ?)",
                (message[_BYTES], seq),
            )
        executemany(_MESSAGE, [(message[_BYTES], seq) for seq, message, _ in replaced])
        executemany(_BODY, starmap(_body_of, replaced))


def _body_of(seq: int, _message: Any, body: Any) -> tuple[Any, ...]:
    """The columns of a body without the time at which the row began to wait."""
    return (*body[:-1], seq)
