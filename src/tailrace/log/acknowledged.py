"""What a quorum of followers has fsynced, as the leader's process tells capture.

The file `quorum-N` holds a mark like `durable`, or nothing before the first quorum. The process
that comes first creates it. It is overwritten in place and never replaced, so that a watch of the
kernel wakes capture.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tailrace.log.format import mark as marks

if TYPE_CHECKING:
    from tailrace.log.format.mark import Mark
    from tailrace.log.store import Store
    from tailrace.log.watch import Watch

_PREFIX = "quorum-"


def prepare(store: Store, needed: int) -> None:
    """Create the file that a quorum of so many will be in, and remove those of other settings."""
    for name in store.names():
        if name.startswith(_PREFIX) and name != f"{_PREFIX}{needed}":
            store.remove(name)
    if needed:
        _create(store, needed)


def _create(store: Store, needed: int) -> None:
    """Create the file, empty, unless it exists."""
    store.append_to(f"{_PREFIX}{needed}").close()


def read(store: Store, needed: int) -> Mark | None:
    """The mark of the quorum; None before the first one."""
    with contextlib.suppress(FileNotFoundError):
        if store.size(f"{_PREFIX}{needed}"):
            return marks.read(store, f"{_PREFIX}{needed}")
    return None


def write(store: Store, needed: int, mark: Mark) -> None:
    """Publish a mark."""
    name = f"{_PREFIX}{needed}"
    try:
        store.overwrite(name, mark.encode())
    except FileNotFoundError:
        _create(store, needed)
        store.overwrite(name, mark.encode())


def watch(store: Store, needed: int) -> Watch:
    """A watch that the next mark wakes."""
    return store.watch(f"{_PREFIX}{needed}")
