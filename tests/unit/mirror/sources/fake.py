"""A source by script: schemas, snapshots and batches of changes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from tailrace.client import Batch, Meta, Schema, State, StreamIdentity
from tailrace.client.names import Table
from tailrace.client.schemas import Column
from tailrace.position import Lsn
from tailrace.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.client import Change

AT = datetime(2026, 1, 1, tzinfo=UTC)


def column(name: str, data_type: str = "text", **more: Any) -> Column:
    settings = {"position": ord(name[0]), "is_nullable": True, "column_default": None} | more
    return Column(name=name, data_type=data_type, **settings)


def schema(*columns: Column, **more: Any) -> Schema:
    settings: dict[str, Any] = {"key": ("id",)} | more
    return Schema(table=Table("public", "users"), timestamp=0, columns=columns, **settings)


USERS = schema(column("id", "integer"), column("name"))


def state(sequence: int = 0) -> State:
    return State(
        table="users", snapshot_id="s", lsn="0/1", visibility="1:1:", since=None, stream="2026",
        sequence=sequence, pipeline="shop", history="aa",
    )  # fmt: skip


def batch(*changes: Change, sequence: int = 1, **more: Any) -> Batch:
    settings: dict[str, Any] = {"pending": 0} | more
    return Batch(changes=changes, state=state(sequence), **settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeChunk:
    """Rows of a snapshot."""

    snapshot_id: str
    content: list[dict[str, Any]]
    columns: Sequence[str] | None = None

    def rows(self) -> list[dict[str, Any]]:
        return self.content

    def plain(self) -> bytes:
        raise NotImplementedError


class Iterated:
    """Yields items, raises those that are errors, then waits for ever."""

    def __init__(self, items: Sequence[Any], *, ends: bool) -> None:
        self._items = [*items]
        self._ends = ends
        self.meta: Meta | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if not self._items:
            if self._ends:
                raise StopAsyncIteration
            await asyncio.Event().wait()
        item = self._items.pop(0)
        if isinstance(item, Exception):
            raise item
        return item


@dataclass(slots=True, kw_only=True)
class FakeSource:
    """Snapshots and batches in the order of the script; errors in it are raised."""

    schema_: Schema | None = USERS
    snapshots: list[Any] = field(default_factory=list)
    followed: list[list[Any]] = field(default_factory=list)
    """Per call of `transactions`: batches and errors."""
    states: list[State] = field(default_factory=list)
    claim: str = "aa 0 0"
    """The claim of the pipeline `shop`."""

    async def schema(self, _table: str) -> Schema | None:
        return self.schema_

    async def schemas(self) -> Mapping[str, Schema]:
        return {} if self.schema_ is None else {"users": self.schema_}

    async def stream_identity(self) -> StreamIdentity | None:
        metadata = {"tailrace.history.shop": self.claim} if self.claim else {}
        config = {"name": "CDC", "metadata": metadata}
        return StreamIdentity({"created": "2026", "config": config})

    def chunks(self, _table: str, *, form: Any) -> Any:
        script = self.snapshots.pop(0)
        if isinstance(script, Exception):
            return Iterated([script], ends=True)
        chunks, row_count = script
        iterated = Iterated(chunks, ends=True)
        iterated.meta = Meta(
            snapshot_id=chunks[-1].snapshot_id if chunks else "empty", lsn=Lsn(1),
            visibility=Visibility.parse("1:1:"), timestamp=AT, since=None,
            batch_count=len(chunks), row_count=row_count, supersedes=None, pipeline="shop",
        )  # fmt: skip
        return iterated

    def transactions(self, _table: str, state: State) -> Any:
        self.states.append(state)
        return Iterated(self.followed.pop(0), ends=False)
