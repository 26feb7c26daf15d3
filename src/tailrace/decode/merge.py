"""Merges small entries before decoding.

A live log has an entry every few milliseconds, each with a dozen rows. To decode and encode a dozen
rows costs about as much as thousands, so neighbouring entries of whole transactions are merged
first. Entries with logical messages stay as they are, because a non-transactional message takes its
time from its own entry. Fragments stay as they are too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tailrace.log.format.entry import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tailrace.log.format.entry import Entry

_TARGET_BYTES = 1 << 19
_MESSAGE = ord("M")


def merged(entries: Iterable[Entry], target_bytes: int = _TARGET_BYTES) -> Iterator[Entry]:
    """The same messages in fewer entries of about `target_bytes`."""
    waiting: list[Entry] = []
    size = 0
    for entry in entries:
        if not _plain(entry):
            if waiting:
                yield _joined(waiting)
                waiting, size = [], 0
            yield entry
            continue
        waiting.append(entry)
        size += len(entry.body)
        if size >= target_bytes:
            yield _joined(waiting)
            waiting, size = [], 0
    if waiting:
        yield _joined(waiting)


def _plain(entry: Entry) -> bool:
    if entry.kind is not Kind.TRANSACTIONS:
        return False
    kinds = np.frombuffer(entry.body, np.uint8)[entry.offsets[:-1]]
    return not (kinds == _MESSAGE).any()


def _joined(entries: list[Entry]) -> Entry:
    if len(entries) == 1:
        return entries[0]
    starts = np.cumsum([0, *(len(entry.body) for entry in entries)])
    offsets = [entry.offsets[:-1] + start for entry, start in zip(entries, starts, strict=False)]
    last = entries[-1]
    return replace(
        entries[0],
        last=last.last,
        end_lsn=last.end_lsn,
        last_time=max(entry.last_time for entry in entries),
        transactions=sum(entry.transactions for entry in entries),
        changes=sum(entry.changes for entry in entries),
        schemas=sum(entry.schemas for entry in entries),
        offsets=np.concatenate([*offsets, starts[-1:]]).astype(np.uint32),
        body=b"".join(entry.body for entry in entries),
    )
