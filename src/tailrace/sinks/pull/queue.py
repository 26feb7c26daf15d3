"""Delivers messages of the store, and removes what consumers acknowledge.

Calls run within one transaction, which the caller commits before it answers (`transaction`). Times
are arguments. A delivery is named by its message and a token: when it ends, because it was
acknowledged, rejected or expired, its token is worth nothing.

What ends a delivery ends those of later messages of the same keys, too, except for an
acknowledgement. The messages of a key that are out are therefore always its earliest ones, and
nothing of a key is out twice.
"""

# ruff: noqa: S608 - values are parameters, and everything else is text of this package

from __future__ import annotations

import json
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from tailrace.sinks.pull.database import DELAYED, EXHAUSTED, OUT, WAITING, PullDatabase
from tailrace.sinks.pull.succession import BEFORE, FIRST, LAST_WHOLE, NEXT, NEXT_WHOLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_EXPIRED_AT_ONCE = 10_000
_LISTED = "IN (SELECT value FROM json_each(?))"
_CHOSEN = "IN (SELECT seq FROM chosen)"
_READY = (
    f"SELECT m.seq, m.bytes, {', '.join(NEXT)} FROM messages m "
    f"WHERE m.first AND m.state = {WAITING} ORDER BY m.seq LIMIT ?"
)
_FOLLOWER = (
    f"SELECT m.state, m.bytes, m.whole, {LAST_WHOLE}, {', '.join([*BEFORE, *NEXT])} "
    "FROM messages m WHERE m.seq = ?"
)
_DELIVERED = (
    "SELECT seq, deliveries, id, destination, key, payload, headers, lsn, ordinal, "
    "committed_at "
    f"FROM messages JOIN bodies USING (seq) WHERE seq {_LISTED} ORDER BY seq"
)
_AFTER = "WITH RECURSIVE after (seq) AS ({start} UNION {steps}) SELECT seq FROM after"
"""The messages that come after some others in their groups, as long as they are out."""


class DeliveryId(NamedTuple):
    """A delivery of a message."""

    seq: int
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A message as a consumer receives it."""

    delivery: DeliveryId
    deliveries: int
    """How often it was delivered, this time included."""
    id: str
    destination: str
    key: bytes | None
    payload: bytes
    headers: str | None
    """As JSON."""
    lsn: int
    ordinal: int
    committed_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How a consumer is served."""

    max_out: int
    """Messages that are delivered and not acknowledged."""
    max_deliveries: int
    """After so many a message is exhausted. 0: never."""
    max_bytes: int
    """Of the messages of one answer, which has at least one."""
    blocks: bool = True
    """Whether later messages of a key wait for one that is exhausted."""


class Queue(PullDatabase):
    """The store, open for what consumers and operators do."""

    def __init__(self, path: Path, rules: Rules) -> None:
        super().__init__(path, write=True)
        self._rules = rules
        for table in ("chosen", "touched", "later"):
            self.connection.execute(f"CREATE TEMP TABLE {table} (seq INTEGER PRIMARY KEY)")

    def receive(self, limit: int, *, token: int, now_ms: int, visibility_ms: int) -> list[Delivery]:
        """Deliver the oldest messages that may be delivered, in order; empty if there are none.

        They are invisible for `visibility_ms`. Several messages of a key may be among them.
        """
        seqs = self._pick(min(limit, self._rules.max_out - self.totals().out))
        if not seqs:
            return []
        listed = json.dumps(seqs)
        self.connection.execute(
            f"UPDATE messages SET state = {OUT}, token = ?, at = ?, deliveries = deliveries + 1 "
            f"WHERE seq {_LISTED}",
            (token, now_ms + visibility_ms, listed),
        )
        found = [
            Delivery(
                delivery=DeliveryId(seq, token), deliveries=deliveries, id=name,
                destination=destination, key=key, payload=payload, headers=headers,
                lsn=lsn, ordinal=ordinal, committed_at=committed_at,
            )
            for (
                seq, deliveries, name, destination, key, payload, headers,
                lsn, ordinal, committed_at,
            ) in self.connection.execute(_DELIVERED, (listed,))
        ]  # fmt: skip
        repeated = sum(each.deliveries > 1 for each in found)
        self._count(out=len(found), delivered=len(found), redelivered=repeated)
        return found

    def _pick(self, limit: int) -> list[int]:
        """The numbers of the messages to deliver: `first` ones, and what may follow them."""
        picked: dict[int, None] = {}
        left = self._rules.max_bytes
        for seq, size in self._in_order(limit, picked):
            left -= size
            if picked and left < 0:
                break
            picked[seq] = None
            if len(picked) == limit:
                break
        return list(picked)

    def _in_order(self, limit: int, picked: dict[int, None]) -> Iterator[tuple[int, int]]:
        """Messages that may be delivered with those that are already picked, oldest first."""
        if limit <= 0:
            return
        ready = self.connection.execute(_READY, (limit,)).fetchall()
        candidates = [(seq, size, tuple(after)) for seq, size, *after in ready]
        heapify(candidates)
        # Enough of them are `first`: a later follower cannot be among the oldest.
        last = ready[-1][0] if len(ready) == limit else None
        seen: set[int] = set()
        while candidates:
            seq, size, after = heappop(candidates)
            yield seq, size
            for follower in after:
                if follower is None or follower in seen:
                    continue
                if last is None or follower < last:
                    found = self._follower(follower, picked)
                    if found is not None:
                        seen.add(follower)
                        heappush(candidates, found)

    def _follower(
        self, seq: int, picked: dict[int, None]
    ) -> tuple[int, int, tuple[int | None, ...]] | None:
        """A message that may be delivered together with those before it."""
        state, size, _, barrier, *others = self.connection.execute(_FOLLOWER, (seq,)).fetchone()
        before, after = others[: len(BEFORE)], others[len(BEFORE) :]
        waits = any(each is not None and each not in picked for each in before)
        if state != WAITING or waits or barrier is not None:
            return None
        return seq, size, tuple(after)

    def acknowledge(self, deliveries: Sequence[DeliveryId]) -> set[DeliveryId]:
        """Remove messages. Returns the deliveries that had not ended before."""
        known = self._choose(deliveries)
        if known:
            self._count(acknowledged=self._remove())
        return known

    def reject(
        self, deliveries: Sequence[DeliveryId], *, now_ms: int, delay_ms: int
    ) -> set[DeliveryId]:
        """End deliveries without an acknowledgement. Returns those that had not ended before."""
        known = self._choose(deliveries)
        if known:
            self._give_back(at=now_ms + delay_ms if delay_ms else None)
        return known

    def take_back(self, deliveries: Sequence[DeliveryId]) -> set[DeliveryId]:
        """Undo deliveries that their consumer has not seen. Returns those that had not ended."""
        known = self._choose(deliveries)
        if known:
            self._mark_later()
            self.connection.execute("INSERT OR IGNORE INTO later SELECT seq FROM chosen")
            self._return_later()
        return known

    def extend(
        self, deliveries: Sequence[DeliveryId], *, now_ms: int, visibility_ms: int
    ) -> set[DeliveryId]:
        """Move the end of deliveries. Returns those that had not ended before."""
        known = self._choose(deliveries)
        self.connection.execute(
            f"UPDATE messages SET at = ? WHERE seq {_CHOSEN}", (now_ms + visibility_ms,)
        )
        return known

    def expire(self, *, now_ms: int) -> bool:
        """End deliveries whose time has passed, and delays. Returns whether there were any."""
        execute = self.connection.execute
        self._clear("chosen")
        expired = execute(
            f"INSERT INTO chosen SELECT seq FROM messages WHERE state = {OUT} AND at <= ? LIMIT ?",
            (now_ms, _EXPIRED_AT_ONCE),
        ).rowcount
        if expired:
            self._give_back(at=None)
        delayed = execute(
            f"UPDATE messages SET state = {WAITING} WHERE seq IN (SELECT seq FROM messages "
            f"WHERE state = {DELAYED} AND at <= ? LIMIT ?)",
            (now_ms, _EXPIRED_AT_ONCE),
        ).rowcount
        return bool(expired or delayed)

    def next_expiry_ms(self) -> int | None:
        """When `expire` has something to do; None if it is waiting for nothing."""
        found = self.connection.execute(
            f"SELECT (SELECT min(at) FROM messages WHERE state = {OUT}), "
            f"(SELECT min(at) FROM messages WHERE state = {DELAYED})"
        ).fetchone()
        return min((at for at in found if at is not None), default=None)

    def retry(self, seqs: Iterable[int] | None = None) -> int:
        """Have exhausted messages delivered again; all of them without numbers."""
        count = self._choose_exhausted(seqs)
        self.connection.execute(
            f"UPDATE messages SET state = {WAITING}, deliveries = 0 WHERE seq {_CHOSEN}"
        )
        self._count(exhausted=-count)
        return count

    def drop(self, seqs: Iterable[int] | None = None) -> int:
        """Delete exhausted messages; all of them without numbers."""
        count = self._choose_exhausted(seqs)
        self._remove()
        return count

    def _choose(self, deliveries: Sequence[DeliveryId]) -> set[DeliveryId]:
        self._clear("chosen")
        known = self.connection.execute(
            "SELECT m.seq, m.token FROM json_each(?) AS given JOIN messages m "
            "ON m.seq = json_extract(given.value, '$[0]') "
            f"AND m.token = json_extract(given.value, '$[1]') WHERE m.state = {OUT}",
            (json.dumps(deliveries),),
        ).fetchall()
        self.connection.executemany(
            "INSERT OR IGNORE INTO chosen VALUES (?)", [(seq,) for seq, _ in known]
        )
        return {DeliveryId(*each) for each in known}

    def _choose_exhausted(self, seqs: Iterable[int] | None) -> int:
        self._clear("chosen")
        query = f"INSERT INTO chosen SELECT seq FROM messages WHERE state = {EXHAUSTED}"
        if seqs is None:
            return self.connection.execute(query).rowcount
        listed = json.dumps(list(seqs))
        return self.connection.execute(f"{query} AND seq {_LISTED}", (listed,)).rowcount

    def _give_back(self, *, at: int | None) -> None:
        """End the chosen deliveries. `at` is when their messages may be delivered again."""
        self._mark_later()
        self.connection.execute("DELETE FROM chosen WHERE seq IN (SELECT seq FROM later)")
        self._return_later()
        execute, most = self.connection.execute, self._rules.max_deliveries
        chosen = execute("SELECT count(*) FROM chosen").fetchone()[0]
        self._count(out=-chosen)
        if most:
            self._exhaust(most)
        execute(
            f"UPDATE messages SET state = {DELAYED if at else WAITING}, at = ?, token = NULL "
            f"WHERE seq {_CHOSEN}",
            (at or 0,),
        )

    def _exhaust(self, most: int) -> None:
        """Exhaust those of the chosen messages that were delivered too often."""
        execute = self.connection.execute
        spent = [
            seq
            for (seq,) in execute(
                f"SELECT seq FROM messages WHERE seq {_CHOSEN} AND deliveries >= ?", (most,)
            )
        ]
        if not spent:
            return
        listed = json.dumps(spent)
        execute(f"DELETE FROM chosen WHERE seq {_LISTED}", (listed,))
        execute(
            f"UPDATE messages SET state = {EXHAUSTED}, at = 0, token = NULL WHERE seq {_LISTED}",
            (listed,),
        )
        self._count(exhausted=len(spent))
        if not self._rules.blocks:
            self._touch_successors(f"seq {_LISTED}", listed)
            execute(
                "UPDATE messages SET own = NULL, former = NULL, scope = NULL, whole = 0, first = 1 "
                f"WHERE seq {_LISTED}",
                (listed,),
            )
            self._find_first()

    def _mark_later(self) -> None:
        """Fill `later` with what is out and comes after the chosen messages in their groups."""
        columns = [*NEXT, NEXT_WHOLE]
        start = " UNION ".join(
            f"SELECT {column} FROM messages m WHERE m.seq {_CHOSEN}" for column in columns
        )
        steps = " UNION ".join(
            f"SELECT {column} FROM after a JOIN messages m USING (seq) WHERE m.state = {OUT}"
            for column in columns
        )
        self._clear("later")
        query = _AFTER.format(start=start, steps=steps)
        self.connection.execute(
            f"INSERT INTO temp.later SELECT f.seq FROM ({query}) f JOIN messages m USING (seq) "
            f"WHERE m.state = {OUT}"
        )

    def _return_later(self) -> None:
        """End the deliveries of `later`. Their messages were not the reason: it does not count."""
        later = "IN (SELECT seq FROM temp.later)"
        count = self.connection.execute(
            f"UPDATE messages SET state = {WAITING}, at = 0, token = NULL, "
            f"deliveries = deliveries - 1 WHERE seq {later}"
        ).rowcount
        self._count(out=-count)

    def _remove(self) -> int:
        """Delete the chosen messages. Returns how many there were."""
        execute = self.connection.execute
        self._touch_successors(f"seq {_CHOSEN}")
        count, size, out, exhausted = execute(
            f"SELECT count(*), coalesce(sum(bytes), 0), coalesce(sum(state = {OUT}), 0), "
            f"coalesce(sum(state = {EXHAUSTED}), 0) FROM messages WHERE seq {_CHOSEN}"
        ).fetchone()
        execute(f"DELETE FROM messages WHERE seq {_CHOSEN}")
        execute(f"DELETE FROM bodies WHERE seq {_CHOSEN}")
        self._find_first()
        self._count(messages=-count, bytes=-size, out=-out, exhausted=-exhausted)
        return int(count)

    def _touch_successors(self, where: str, *values: str) -> None:
        """Note the messages that may be `first` once others are no longer in their groups."""
        execute = self.connection.execute
        self._clear("touched")
        for column in (*NEXT, NEXT_WHOLE):
            execute(
                f"INSERT OR IGNORE INTO touched SELECT next FROM (SELECT {column} AS next "
                f"FROM messages m WHERE m.{where}) WHERE next IS NOT NULL",
                values,
            )
        execute(
            "INSERT OR IGNORE INTO touched SELECT n.seq FROM messages m JOIN messages n "
            "ON n.scope = m.scope AND n.seq > m.seq AND n.seq <= coalesce((SELECT w.seq "
            "FROM messages w WHERE w.whole AND w.scope = m.scope AND w.seq > m.seq "
            f"ORDER BY w.seq LIMIT 1), n.seq) WHERE m.whole AND m.{where}",
            values,
        )

    def _find_first(self) -> None:
        self.connection.execute(
            "UPDATE messages AS m SET first = 1 "
            f"WHERE m.seq IN (SELECT seq FROM touched) AND NOT m.first AND {FIRST}"
        )

    def _clear(self, table: str) -> None:
        self.connection.execute(f"DELETE FROM temp.{table}")

    def _count(self, **changes: int) -> None:
        """Add to the totals."""
        added = ", ".join(f"{name} = {name} + {count}" for name, count in changes.items())
        self.connection.execute(f"UPDATE totals SET {added}")
