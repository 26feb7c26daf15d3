"""Sinks a worker holds open: one a pipeline, kept from micro-batch to micro-batch.

A sink belongs to one run of its query. A new run opens its own and reads back what the old one may
have left behind.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.config import NatsSink
    from tailrace.position import Position
    from tailrace.sinks.contract import Sink

_open: dict[str, tuple[str, Sink]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a run of a pipeline delivers to. No other pipeline's messages have these subjects."""

    name: str
    run: str
    sink: NatsSink
    subjects: str = ">"


def get(target: Target, after: Position) -> Sink:
    """The sink of a pipeline, open and ready for what comes after a position."""
    name, run = target.name, target.run
    held = _open.get(name)
    if held is None or held[0] != run:
        discard(name)
        held = _open[name] = (run, build(target))
    held[1].open(after)
    return held[1]


def discard(name: str) -> None:
    """Close a sink that may be in any state."""
    held = _open.pop(name, None)
    if held is not None:
        with contextlib.suppress(Exception):
            held[1].close()


def probe(sink: NatsSink, *, name: str) -> None:
    """An error unless the sink of a pipeline answers."""
    from tailrace.sinks import nats  # noqa: PLC0415 - as below

    nats.probe(sink, name=name)


def build(target: Target) -> Sink:
    """The sink that a target describes."""
    from tailrace.sinks.nats import JetStream  # noqa: PLC0415 - its client loads only where needed

    return JetStream(target.sink, name=target.name, subjects=target.subjects)
