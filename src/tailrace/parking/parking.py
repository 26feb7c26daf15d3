"""A pipeline's parking: its folder, and what the driver and the planner do with it.

    parked.db     the store (`database`)
    parts/        what tasks have parked (`part`)
    orders/       what operators want (`order`)
    blocked/      which groups wait, per position (`blocked`)
    releases/     messages that a micro-batch delivers again
    large/        payloads on their way between tasks (`tailrace.pipeline.frames.large`)
    state         whose positions the files have, and which run of the query may write parts

The planner calls `plan` before it plans a micro-batch. Everything that a task reads is written
before the offset of its batch, and does not change afterwards.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace.errors import SinkFencedError
from tailrace.log.store import LocalStore
from tailrace.message import last_of
from tailrace.parking.blocked import BlockedFiles
from tailrace.parking.order import Orders
from tailrace.parking.part import Parts, pack, unpack
from tailrace.parking.store import Store
from tailrace.position import PAGE_BITS, READS, RELEASED, Position

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tailrace.replicated import Replicated
    from tailrace.sinks.blocked import BlockedGroups
    from tailrace.state_file import StateFile

RELEASE_ROWS = 10_000
RELEASE_BYTES = 16 << 20
_KEPT = 20


def folder_of(data: Path, pipeline: str) -> Path:
    """The folder with the parked messages of a pipeline."""
    return data / "parked" / pipeline


def store_of(folder: Path) -> Path:
    """The file of the store."""
    return folder / "parked.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    history: str = ""
    run: str = ""


@dataclass(frozen=True, slots=True)
class Release:
    """Messages that a micro-batch delivers again."""

    number: int
    last: Position
    """The position of the last of them: the end of the batch."""


class Parking:
    """The parked messages of a pipeline, as its driver and its planner see them."""

    def __init__(self, folder: Path, *, history: str, together: bool = True) -> None:
        self._folder = folder
        self._history = history
        self._together = together
        self._parts = Parts(folder / "parts")
        self._orders = Orders(folder / "orders")
        self._blocked = BlockedFiles(folder / "blocked")
        self._written: int | None = None
        """The changes of groups that the newest file with blocked groups has."""

    @cached_property
    def _store(self) -> Store:
        path = store_of(self._folder)
        return Store(path, history=self._history, together=self._together)

    @property
    def _used(self) -> bool:
        return store_of(self._folder).exists()

    def start_query(self, delivered: Position) -> str:
        """Bring everything up to what is delivered. Returns the name of the run that may park."""
        file = _state_file(self._folder)
        known = file.read_or(_State())
        run = uuid.uuid4().hex
        file.write(_State(history=self._history, run=run))
        if known.history != self._history:
            self._blocked.remove_all()
            for path in (self._folder / "releases").glob("*"):
                path.unlink()
        self._take(delivered)
        if self._used:
            self._blocked.write(delivered, self._store.blocked())
            self._store.close()
        return run

    def _take(self, upto: Position) -> None:
        found = self._parts.all()
        if found:
            self._store.take(self._parts, found, upto=upto)

    def plan(
        self, after: Position, *, page: int, released: int, may_release: bool = True
    ) -> Release | None:
        """Prepare the micro-batch that begins after a position.

        Returns the messages that it has to deliver again, if there are any and it may release them.
        `released` is the number of the last release, `page` that of the last page of a backfill.
        """
        self._take(after)
        self._carry_out_orders()
        if not self._used:
            return None
        # With a group that stays blocked, every batch parks more of it, and blocks nothing new.
        changes = self._store.group_changes()
        if changes != self._written:
            self._blocked.write(after, self._store.blocked())
            self._written = changes
        return self._release(after, page=page, number=released + 1) if may_release else None

    def _carry_out_orders(self) -> None:
        for order in self._orders.all():
            if order.action == "drop":
                self._store.drop(order.id, order.selection)
            else:
                self._store.want(order.id, order.selection)
            self._orders.remove(order)

    def _release(self, after: Position, *, page: int, number: int) -> Release | None:
        rows = self._store.wanted(rows=RELEASE_ROWS, size=RELEASE_BYTES)
        more = self._folder / "more"
        if not rows.num_rows:
            more.unlink(missing_ok=True)
            return None
        more.touch()
        first = max(READS | page << PAGE_BITS | RELEASED, after.ordinal + 1)
        places = {
            "lsn": np.full(rows.num_rows, after.lsn, np.uint64),
            "ordinal": np.arange(first, first + rows.num_rows, dtype=np.uint64),
        }
        for name, values in places.items():
            at = rows.schema.get_field_index(name)
            rows = rows.set_column(at, rows.schema.field(at), pa.array(values))
        store = LocalStore(self._folder / "releases", create=True)
        store.write_atomic(str(number), pack(rows, history=self._history))
        (self._folder / "releases" / str(number - _KEPT)).unlink(missing_ok=True)
        return Release(number, last_of(rows))


class TaskParking:
    """Parking as a task sees it. `run` is the run of the query that the task belongs to."""

    def __init__(
        self, folder: Path, *, history: str, run: str, replicated: Replicated | None = None
    ) -> None:
        self._folder = folder
        self._history = history
        self._run = run
        self._replicated = replicated

    def blocked(self, begin: Position) -> BlockedGroups:
        """The groups that are blocked where the task begins."""
        return BlockedFiles(self._folder / "blocked").at(begin)

    def decided(self, begin: Position) -> NDArray[np.void]:
        """The messages after a position that an earlier attempt has parked, or released."""
        return Parts(self._folder / "parts").places(begin, history=self._history)

    def park(self, rows: pa.RecordBatch) -> None:
        """Keep rows of PARKED, durably, and on followers if need be.

        Raises SinkFencedError if the query was restarted.
        """
        self.check_run()
        Parts(self._folder / "parts").write(rows, history=self._history)
        if self._replicated is not None:
            self._replicated.wait(self.check_run)

    def check_run(self) -> None:
        """Raise SinkFencedError if the query was restarted: this task was replaced."""
        state = _state_file(self._folder).read_or(_State())
        if state.run != self._run:
            raise SinkFencedError("the query was restarted: another task delivers this batch")

    def release(self, number: int) -> pa.RecordBatch:
        """The messages of a release."""
        rows, _ = unpack(self._folder / "releases" / str(number))
        return rows


def orders_wait(folder: Path) -> bool:
    """Whether the next micro-batch has messages to deliver again, or orders to carry out."""
    return (folder / "more").exists() or Orders(folder / "orders").waiting()


def _state_file(folder: Path) -> StateFile[_State]:
    # Not for the planner of a query, which does without pydantic.
    from tailrace.state_file import StateFile  # noqa: PLC0415

    return StateFile(folder / "state", _State)
