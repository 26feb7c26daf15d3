"""Open sinks of a worker: one per lane of a pipeline, kept from micro-batch to micro-batch.

A sink belongs to one run of its query. A new run opens its own and reads back what the last run may
have delivered before it was interrupted.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.parking.parking import TaskParking
from tailrace.pipeline.guard import Flushes, ParkingGuard, StoppingGuard
from tailrace.sinks.contract import Lane
from tailrace.sinks.registry import SINKS
from tailrace.sinks.retry import Retry

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.checkpoint import StartRecord
    from tailrace.pipeline.guard import Guard
    from tailrace.position import Position
    from tailrace.replicated import Replicated
    from tailrace.sinks.contract import Sink
    from tailrace.sinks.sink_type import SinkSettings

_open: dict[tuple[str, int], tuple[str, Sink]] = {}
"""By pipeline and lane: the run it belongs to, and the sink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where one run of a pipeline delivers to."""

    name: str
    run: str
    sink: SinkSettings
    lanes: int = 1
    slot: str = ""
    database: str = ""
    began: StartRecord
    """Where the pipeline began, and the history that its positions belong to."""
    routed: bool = False
    """Whether an expression chooses destinations."""
    folder: Path | None = None
    """For what sinks know of their destination."""
    records: Path | None = None
    """For notes of what the lanes have written."""
    log: Path | None = None
    """The folder of the log, to measure how long changes are in it."""
    retry: Retry = field(default_factory=Retry)
    ordered: bool = True
    """Whether the messages of a key stay in order."""
    parking: ParkingPlace | None = None
    """Where refused messages are parked. None: they stop the pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkingPlace:
    """The parking of one run of a pipeline."""

    folder: Path
    history: str
    run: str
    blocks: bool = True
    """Whether a parked message holds back those of its key."""
    replicated: Replicated | None = None
    """How far followers have what is parked; None if tasks need not wait for them."""

    def for_task(self) -> TaskParking:
        """As a task uses it."""
        return TaskParking(
            self.folder, history=self.history, run=self.run, replicated=self.replicated
        )


def get(target: Target, lane: int, after: Position) -> Sink:
    """The sink of a lane, open and ready for what comes after a position."""
    place, run = (target.name, lane), target.run
    held = _open.get(place)
    if held is None or held[0] != run:
        discard(target, lane)
        held = _open[place] = (run, build(target, lane))
    held[1].open(after)
    return held[1]


def guard(target: Target, sink: Sink) -> Guard:
    """What decides about messages that the sink does not accept."""
    kind = SINKS.find(target.sink.type)
    flushes = Flushes(
        atomic=kind.atomic(target.sink),
        stores_position=kind.stores_position(target.sink),
        all_or_nothing=kind.all_or_nothing,
    )
    place = target.parking
    if place is None:
        return StoppingGuard(sink, flushes)
    return ParkingGuard(sink, flushes, place.for_task(), blocks=place.blocks)


def discard(target: Target, lane: int) -> None:
    """Close a sink that may be in any state."""
    held = _open.pop((target.name, lane), None)
    if held is not None:
        with contextlib.suppress(Exception):
            held[1].close()


def probe(settings: SinkSettings, *, name: str) -> None:
    """Raise an error unless the sink of a pipeline answers."""
    SINKS.find(settings.type).probe(settings, name=name)


def claim(target: Target, after: Position) -> None:
    """Let the sink record the history of a pipeline before its first change.

    A copy that is made before would be of the history that the destination still names.
    """
    with contextlib.closing(build(target, 0)) as sink:
        sink.open(after)


def build(target: Target, lane: int) -> Sink:
    """The sink of a lane, not connected yet."""
    return SINKS.find(target.sink.type).open(
        target.sink,
        Lane(
            pipeline=target.name,
            slot=target.slot,
            number=lane,
            lanes=target.lanes,
            database=target.database,
            history=target.began.history,
            began=target.began.position,
            routed=target.routed,
            folder=target.folder,
            retry=target.retry,
            ordered=target.ordered,
            blocks=target.ordered and (target.parking is None or target.parking.blocks),
        ),
    )
