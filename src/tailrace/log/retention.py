"""Retention: which segments may go, and who still needs them.

Whoever reads the log over time pins its position under a name. A sealed segment is deleted only
when every pin has passed it and it is beyond the limits: older than `keep_hours`, or more than
`keep_bytes` of consumed log behind it. The last segment always stays, and what remains begins with
a whole transaction.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from tailrace.errors import ConfigError, CorruptError
from tailrace.log.reader import Log
from tailrace.position import Position

if TYPE_CHECKING:
    from tailrace.log.format.segment import SegmentName
    from tailrace.log.store import Store

_PIN = re.compile(r"pin-([a-z0-9_-]{1,100})\.json")
_HOUR_MICROS = 3_600_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much consumed log to keep for replays."""

    keep_hours: float = 24
    keep_bytes: int = 10 << 30


def pin(store: Store, name: str, position: Position) -> None:
    """Keep everything after `position` for the reader called `name`."""
    if not _PIN.fullmatch(f"pin-{name}.json"):
        raise ConfigError(f"{name!r} cannot name a pin; use lower case, digits, - and _")
    store.write_atomic(f"pin-{name}.json", json.dumps({"position": str(position)}).encode())


def unpin(store: Store, name: str) -> None:
    """Forget a reader."""
    store.remove(f"pin-{name}.json")


def pins(store: Store) -> dict[str, Position]:
    """All readers and how far they are."""
    found = {}
    for file in store.names():
        match = _PIN.fullmatch(file)
        if match is None:
            continue
        try:
            found[match[1]] = Position.parse(str(json.loads(store.read(file, 0, 4096))["position"]))
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptError(
                f"{file} is unreadable: {error}",
                hint="Remove the file if its reader is gone; otherwise let the reader write it.",
            ) from error
    return found


def expired(store: Store, limits: Limits, *, now_micros: int) -> list[SegmentName]:
    """The segments that may go, oldest first. `now_micros` counts from 2000-01-01 UTC."""
    log = Log(store)
    needed = min([log.end().position, *pins(store).values()])
    sealed = _sealed(log, needed)
    oldest = now_micros - int(limits.keep_hours * _HOUR_MICROS)
    kept_bytes = 0
    for count in range(len(sealed), 0, -1):
        name, following = sealed[count - 1]
        kept_bytes += store.size(name.file)
        if kept_bytes > limits.keep_bytes or log.header(following).base_time < oldest:
            return _upto_whole(log, sealed[:count])
    return []


def before(store: Store, position: Position) -> list[SegmentName]:
    """The sealed segments that hold nothing after `position`, oldest first."""
    log = Log(store)
    return _upto_whole(log, _sealed(log, position))


def _sealed(log: Log, upto: Position) -> list[tuple[SegmentName, SegmentName]]:
    """The segments that hold nothing after `upto`, each with the one that follows it."""
    pairs = pairwise(log.visible_segments())
    return [(name, following) for name, following in pairs if log.header(following).base <= upto]


def _upto_whole(log: Log, going: list[tuple[SegmentName, SegmentName]]) -> list[SegmentName]:
    """Leave no second half of a transaction at the beginning of the log."""
    while going and not log.opens_whole(going[-1][1]):
        going = going[:-1]
    return [name for name, _ in going]


def delete(store: Store, segments: list[SegmentName]) -> None:
    """Delete segments, oldest first, each after its index: an interruption leaves no hole."""
    for name in segments:
        store.remove(name.index)
        store.remove(name.file)
