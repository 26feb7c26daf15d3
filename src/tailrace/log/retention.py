"""Retention: which segments may be deleted, and which readers still need them.

A reader pins its position under a name. Retention deletes a segment only when every pin is past it
and it exceeds the limits: it is older than `keep_hours`, or more than `keep_bytes` of consumed log
follow it. The last segment always stays, and the rest of the log begins with a whole transaction.
A reader that is configured and has no pin yet needs everything from its start on.

A reader renews its pin while it runs. A pin stays when its reader is gone: a pipeline that was
renamed, or is stopped for a while? Only a person knows. Such pins are `stale`: capture warns about
them, `/metrics` has their age, and `tailrace log unpin` removes them.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tailrace.errors import ConfigError, CorruptError, PositionLostError
from tailrace.log.reader import Log
from tailrace.log.store import replace_record
from tailrace.position import Position

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tailrace.log.format.segment import SegmentName
    from tailrace.log.start import Start
    from tailrace.log.store import Store

_PIN = re.compile(r"pin-((?:(?:backfill|follower)\.)?[a-z0-9_-]{1,100})\.json")
_FOLLOWER = "follower."
_PIN_BYTES = 128
"""All pins have one size, so that a full disk has space for the next position of a reader."""
_READ_ATTEMPTS = 3
_STALE_S = 3600.0
_HOUR_MICROS = 3_600_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much consumed log to keep for replay."""

    keep_hours: float = 24
    keep_bytes: int = 10 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """The position of a reader."""

    position: Position
    renewed_at: float
    """In Unix seconds."""


def backfill_pin(pipeline: str) -> str:
    """The name of the pin for the backfills of a pipeline. No pipeline has such a name."""
    return f"backfill.{pipeline}"


def pin(store: Store, name: str, position: Position, *, now: float) -> None:
    """Keep everything after `position` for the reader `name`. `now` is in Unix seconds.

    On a full disk it overwrites the old pin in place: readers that go on are what frees the disk.
    """
    if not _PIN.fullmatch(f"pin-{name}.json"):
        raise ConfigError(
            f"invalid pin name {name!r}", hint="Use lower case letters, digits, - and _."
        )
    content = json.dumps({"position": str(position), "renewed_at": now}).ljust(_PIN_BYTES)
    replace_record(store, f"pin-{name}.json", content.encode())


def unpin(store: Store, name: str) -> None:
    """Remove the pin of a reader."""
    file = f"pin-{name}.json"
    if file in store.names():
        store.remove(file)


def forget_led(store: Store, pipelines: Collection[str]) -> None:
    """Remove what a machine pinned while it led: for its followers, and for its pipelines.

    Nothing renews these pins while it follows. Pins of other readers of this machine stay.
    """
    led = {*pipelines, *map(backfill_pin, pipelines)}
    for file in store.names():
        match = _PIN.fullmatch(file)
        if match is not None and (match[1] in led or match[1].startswith(_FOLLOWER)):
            store.remove(file)


def own_pin(store: Store, name: str) -> Position | None:
    """Where a reader pinned the log. None if it has no pin, or an unreadable one: it pins again.

    The pins of other readers are not its business, and may be unreadable.
    """
    try:
        return _read_pin(store, f"pin-{name}.json").position
    except (FileNotFoundError, CorruptError):
        return None


def pins(store: Store) -> dict[str, Position]:
    """The pinned position of each reader."""
    return {name: pin.position for name, pin in read_pins(store).items()}


def pins_document(store: Store, *, now: float) -> list[dict[str, Any]]:
    """The pins as JSON, with the WAL after them and the seconds since they were renewed."""
    end = Log(store).end()
    return [
        {
            "name": name,
            "position": str(pin.position),
            "lag_bytes": max(end.end_lsn - pin.position.lsn, 0),
            "age_s": round(max(now - pin.renewed_at, 0)),
        }
        for name, pin in sorted(read_pins(store).items())
    ]


def stale(store: Store, *, now: float) -> dict[str, Pin]:
    """The pins that no reader has renewed for an hour."""
    every = read_pins(store).items()
    return {name: pin for name, pin in every if now - pin.renewed_at > _STALE_S}


def read_pins(store: Store) -> dict[str, Pin]:
    """The pin of each reader."""
    found = {}
    for file in store.names():
        match = _PIN.fullmatch(file)
        if match is not None:
            with contextlib.suppress(FileNotFoundError):
                found[match[1]] = _read_pin(store, file)
    return found


def pin_files(store: Store) -> list[str]:
    """The files of the pins, but for those of followers, which belong to one leader."""
    matches = filter(None, map(_PIN.fullmatch, sorted(store.names())))
    return [match[0] for match in matches if not match[1].startswith(_FOLLOWER)]


def _read_pin(store: Store, file: str) -> Pin:
    for attempt in range(_READ_ATTEMPTS):
        try:
            content = json.loads(store.read(file, 0, 4096))
            return Pin(
                position=Position.parse(str(content["position"])),
                renewed_at=float(content.get("renewed_at", 0)),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            # A pin may be overwritten at this moment.
            if attempt + 1 == _READ_ATTEMPTS:
                raise CorruptError(
                    f"the pin file {file} is unreadable: {error}",
                    hint="Remove the file if its reader no longer exists; a pipeline rewrites its "
                    "pin when it starts.",
                ) from error
    raise AssertionError("unreachable")


def expired(
    store: Store,
    limits: Limits,
    *,
    now_micros: int,
    readers: Mapping[str, Start] = MappingProxyType({}),
) -> list[SegmentName]:
    """The segments to delete, oldest first. `now_micros` counts from 2000-01-01 UTC.

    `readers` are the configured readers by name, and where each starts.
    """
    log = Log(store)
    pinned = pins(store)
    waiting = [start for name, start in readers.items() if name not in pinned]
    starts = [position for start in waiting if (position := _resolve(log, start)) is not None]
    needed = min([log.end().position, *pinned.values(), *starts])
    sealed = _sealed(log, needed)
    oldest = now_micros - int(limits.keep_hours * _HOUR_MICROS)
    kept_bytes = 0
    for count in range(len(sealed), 0, -1):
        name, following = sealed[count - 1]
        kept_bytes += store.size(name.file)
        if kept_bytes > limits.keep_bytes or log.header(following).base_time < oldest:
            return _upto_whole(log, sealed[:count])
    return []


def _resolve(log: Log, start: Start) -> Position | None:
    """Where a reader will start; None if the log no longer holds it: the reader reports that."""
    try:
        return log.resolve(start)
    except PositionLostError:
        return None


def before(store: Store, position: Position) -> list[SegmentName]:
    """The sealed segments that hold nothing after `position`, oldest first."""
    log = Log(store)
    return _upto_whole(log, _sealed(log, position))


def _sealed(log: Log, upto: Position) -> list[tuple[SegmentName, SegmentName]]:
    """The segments that hold nothing after `upto`, each with the one that follows it."""
    pairs = pairwise(log.visible_segments())
    return [(name, following) for name, following in pairs if log.header(following).base <= upto]


def _upto_whole(log: Log, pairs: list[tuple[SegmentName, SegmentName]]) -> list[SegmentName]:
    """Fewer segments, so that the log does not begin inside a transaction."""
    while pairs and not log.opens_whole(pairs[-1][1]):
        pairs = pairs[:-1]
    return [name for name, _ in pairs]


def delete(store: Store, segments: list[SegmentName]) -> None:
    """Delete segments, oldest first, each after its index: an interruption leaves no hole."""
    for name in segments:
        store.remove(name.index)
        store.remove(name.file)
