"""Sinks a worker holds open: one a lane of a pipeline, kept from micro-batch to micro-batch.

A sink belongs to one run of its query. A new run opens its own and reads back what the old one may
have left behind.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.config import KafkaSink, NatsSink, ShadowSink
    from tailrace.position import Position
    from tailrace.sinks.contract import Sink

    AnySink = NatsSink | KafkaSink | ShadowSink
    Lane = tuple[str, int]
    """A pipeline's name, and which of its lanes."""

_open: dict[Lane, tuple[str, Sink]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a run of a pipeline delivers to. No other pipeline's messages have these subjects."""

    name: str
    run: str
    sink: AnySink
    subjects: str = ">"
    lanes: int = 1
    source: str = ""
    """Which history the positions are of."""


def get(target: Target, lane: int, after: Position) -> Sink:
    """The sink of a lane, open and ready for what comes after a position."""
    place, run = (target.name, lane), target.run
    held = _open.get(place)
    if held is None or held[0] != run:
        discard(target, lane)
        held = _open[place] = (run, build(target, lane))
    held[1].open(after)
    return held[1]


def discard(target: Target, lane: int) -> None:
    """Close a sink that may be in any state."""
    held = _open.pop((target.name, lane), None)
    if held is not None:
        with contextlib.suppress(Exception):
            held[1].close()


def probe(sink: AnySink, *, name: str) -> None:
    """An error unless the sink of a pipeline answers."""
    # A sink's client loads only where it is needed.
    if sink.type == "nats":
        from tailrace.jetstream import stream as nats  # noqa: PLC0415

        nats.probe(sink, name=name)
    else:
        from tailrace.sinks import kafka  # noqa: PLC0415

        kafka.probe(sink, name=name)


def build(target: Target, lane: int) -> Sink:
    """The sink that a target describes."""
    sink = target.sink
    if sink.type == "kafka":
        from tailrace.sinks.kafka import Kafka  # noqa: PLC0415

        return Kafka(sink, name=target.name, lane=lane, lanes=target.lanes, source=target.source)
    if sink.type == "shadow":
        from tailrace.shadow.sink import Shadow  # noqa: PLC0415

        return Shadow(sink, name=target.name)
    from tailrace.sinks.nats import JetStream  # noqa: PLC0415

    return JetStream(sink, name=target.name, subjects=target.subjects)
