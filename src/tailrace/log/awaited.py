"""A request that capture advance the log to an LSN, whether or not a change precedes it.

While the published tables are idle, capture records its progress through the WAL only every
`capture.progress_s`. A component that must know that no change is missing up to an LSN, such as a
snapshot or a backfill, requests that LSN here, and capture records it at once.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tailrace.position import Lsn

if TYPE_CHECKING:
    from tailrace.log.store import Store

_NAME = "awaited"
_BYTES = 32


def ask(store: Store, lsn: Lsn) -> None:
    """Request that the log advance to an LSN. Replaces an earlier request."""
    store.write_atomic(_NAME, str(lsn).encode())


def read(store: Store) -> Lsn:
    """The requested LSN; 0 if there was never a request."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return Lsn.parse(store.read(_NAME, 0, _BYTES).decode())
    return Lsn(0)
