"""Somebody waits for the log to come to an LSN, whether or not there is a change before it.

Capture moves the log along with WAL that holds nothing for it now and then only. Whoever has to
know that nothing is missing up to an LSN says so here, and capture does it at once.
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
    """Wait for an LSN."""
    store.write_atomic(_NAME, str(lsn).encode())


def read(store: Store) -> Lsn:
    """What is waited for; 0 if nothing ever was."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return Lsn.parse(store.read(_NAME, 0, _BYTES).decode())
    return Lsn(0)
