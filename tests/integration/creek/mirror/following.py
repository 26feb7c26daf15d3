"""Mirrors of Creek's tables, in the test's own process, and a table to compare them with."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from tailrace.mirror import Mirror, target_of
from tailrace.mirror.sources.registry import Address
from tests.integration.creek.client.producer import event
from tests.integration.mirror.system import Running

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from tailrace.schema import Relation
    from tests.integration.creek.client.producer import Producer


class Following(Running):
    """A mirror on a thread of its own."""

    async def _mirror(self) -> None:
        self._task = asyncio.current_task()
        async with Address.parse(self._url).opened(
            credentials=None, stream="", snapshots="", subjects=""
        ) as source:
            target = target_of(self._to, self._table)
            await Mirror(
                source, self._table, target, status=self.status, **self._options
            ).run()  # fmt: skip


@contextlib.contextmanager
def mirror(feeding: Producer, table: str, to: str, **options: Any) -> Iterator[Following]:
    """A mirror for a while; an error that ended it is raised."""
    url = f"{feeding.url}?creek={feeding.namespace}&database=shop"
    running = Following(url, table, to, **options)
    try:
        yield running
    finally:
        running.stop()
    if running.failure is not None and not isinstance(running.failure, asyncio.CancelledError):
        raise running.failure


class Source:
    """A table of an id and a name that changes at random, and tells it as Creek does."""

    def __init__(self, table: Relation, chance: random.Random) -> None:
        self.rows: dict[int, str | None] = {}
        self._table = table
        self._chance = chance
        self.xid = 100

    def transaction(self) -> list[bytes]:
        """Some changes of one commit."""
        self.xid += 1
        return [self._change() for _ in range(self._chance.randint(1, 4))]

    def _change(self) -> bytes:
        kind = self._chance.choices(["c", "u", "u_pk", "toast", "d", "t"], [8, 6, 3, 3, 4, 0.2])[0]
        if kind == "t":
            self.rows.clear()
            return self._event("t")
        if kind == "c" or not self.rows:
            number = self._free()
            self.rows[number] = name = self._name()
            return self._event("c", after={"id": number, "name": name})
        number = self._chance.choice(sorted(self.rows))
        match kind:
            case "d":
                del self.rows[number]
                return self._event("d", before={"id": number})
            case "u_pk":
                other, kept = self._free(), self.rows.pop(number)
                self.rows[other] = kept
                return self._event(
                    "u_pk", before={"id": number}, after={"id": other, "name": None},
                    unchanged=["name"],
                )  # fmt: skip
            case "toast":
                after = {"id": number, "name": None}
                return self._event("u", before={"id": number}, after=after, unchanged=["name"])
            case _:
                self.rows[number] = name = self._name()
                return self._event("u", before={"id": number}, after={"id": number, "name": name})

    def _event(self, op: str, **more: Any) -> bytes:
        return event(self._table, op, lsn=self.xid * 16, xid=self.xid, **more)

    def _free(self) -> int:
        return next(n for n in iter(lambda: self._chance.randint(0, 999), -1) if n not in self.rows)

    def _name(self) -> str | None:
        return self._chance.choice([None, "", "né 'quoted' \\ \t", "x" * 50])

    def seen(self) -> dict[str, Any]:
        """What a snapshot of this moment says of itself."""
        return {"visibility": f"{self.xid + 1}:{self.xid + 1}:", "lsn": "0/1"}

    def listed(self) -> list[dict[str, Any]]:
        """Its rows."""
        return [{"id": number, "name": name} for number, name in sorted(self.rows.items())]
