"""Files of a data folder."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from tailrace.replica.frames import BundleHead
from tailrace.replica.received import Received

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.replica.bundle import Bundle

ORDERS = "pipeline.orders"
"""The bundle of the pipeline `orders`."""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def database(path: Path, rows: int) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = sqlite3.connect(path, isolation_level=None)
    made.execute("PRAGMA journal_mode = WAL")
    made.execute("CREATE TABLE parked (seq int)")
    made.executemany("INSERT INTO parked VALUES (?)", [(each,) for each in range(rows)])
    return made


def received(data: Path, *made: Bundle | None) -> Received:
    """A follower that has received bundles."""
    follower = Received(data)
    for each in made:
        assert each is not None
        follower.begin(BundleHead(name=each.name, size=each.size, crc=each.crc))
        ends = [follower.take(piece) for piece in each.pieces()]
        assert ends == [False] * (len(ends) - 1) + [True]
        follower.complete()
    return follower
