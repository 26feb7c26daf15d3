"""Mirrors of Creek's tables, in the process of the test, and a table to compare them with."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from tailrace.mirror import Mirror, target_of
from tailrace.mirror.sources.registry import SelectedSource
from tailrace.mirror.sources.source import SourceOptions
from tests.integration.creek.client.producer import event
from tests.integration.mirror.system import Running

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from tailrace.schema import Relation
    from tests.integration.creek.client.producer import Producer


class Following(Running):
    """A mirror of a Creek table in its own thread."""

    async def _mirror(self) -> None:
        self._task = asyncio.current_task()
        async with SelectedSource.parse(self._url).open(SourceOptions()) as source:
            target = target_of(self._to, self._table)
            await Mirror(
                source, self._table, target, status=self.status, **self._options
            ).run()  # fmt: skip


@contextlib.contextmanager
def mirror(feeding: Producer, table: str, to: str, **options: Any) -> Iterator[Following]:
    """A mirror until the block ends. Raises the error that ended it."""
    url = f"{feeding.url}?creek={feeding.names.namespace}&database=shop"
    running = Following(url, table, to, **options)
    try:
        yield running
    finally:
        running.stop()
    if running.failure is not None and not isinstance(running.failure, asyncio.CancelledError):
        raise running.failure


class RandomTable:
    """A table of an id and a name that changes at random, and the changes as Creek sends them."""

    def __init__(self, table: Relation, randomness: random.Random) -> None:
        self.rows: dict[int, str | None] = {}
        self._table = table
        self._randomness = randomness
        self.xid = 100

    def transaction(self) -> list[bytes]:
        """The changes of one commit."""
        self.xid += 1
        return [self._change() for _ in range(self._randomness.randint(1, 4))]

    def _change(self) -> bytes:
        kind = self._randomness.choices(
            ["c", "u", "u_pk", "toast", "d", "t"], [8, 6, 3, 3, 4, 0.2]
        )[0]
        if kind == "t":
            self.rows.clear()
            return self._event("t")
        if kind == "c" or not self.rows:
            number = self._free()
            self.rows[number] = name = self._name()
            return self._event("c", after={"id": number, "name": name})
        number = self._randomness.choice(sorted(self.rows))
        match kind:
            case "d":
                del self.rows[number]
                return self._event("d", before={"id": number})
            case "u_pk":
                other = self._free()
                self.rows[other] = self.rows.pop(number)
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
        return next(
            n for n in iter(lambda: self._randomness.randint(0, 999), -1) if n not in self.rows
        )

    def _name(self) -> str | None:
        return self._randomness.choice([None, "", "né 'quoted' \\ \t", "x" * 50])

    def header(self) -> dict[str, Any]:
        """The header of a snapshot that is taken now."""
        return {"visibility": f"{self.xid + 1}:{self.xid + 1}:", "lsn": "0/1"}

    def listed(self) -> list[dict[str, Any]]:
        """All rows."""
        return [{"id": number, "name": name} for number, name in sorted(self.rows.items())]
