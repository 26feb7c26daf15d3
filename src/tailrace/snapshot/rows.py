"""Rows of a snapshot as a group of changes with operation `read`: encoders take both alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailrace.change import Op
from tailrace.decode.group import Group

if TYPE_CHECKING:
    from tailrace.decode.group import Image
    from tailrace.snapshot.export import Exported
    from tailrace.snapshot.table import Table


def read_group(
    table: Table, snapshot: Exported, image: Image, count: int, *, first: int = 0
) -> Group:
    """`count` rows of the snapshot, with ordinals from `first`."""
    taken_us = int(snapshot.taken_at.timestamp() * 1_000_000)
    return Group(
        op=Op.READ,
        relation=table.relation,
        types=table.types,
        lsn=np.full(count, snapshot.lsn, np.uint64),
        ordinal=np.arange(first, first + count, dtype=np.uint64),
        xid=np.zeros(count, np.uint32),
        committed_at=np.full(count, taken_us, np.int64),
        after=image,
    )
