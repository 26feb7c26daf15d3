"""Where files are stored: what the sink needs of a local folder or of an object store.

Names are paths below the URL, such as `public/orders/NAME.parquet`. All that returns is durable, as
far as the store promises it. An implementation is `local.LocalFolder` or `objects.ObjectStore`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A complete file: its temporary name, and its final name."""

    temporary: str
    final: str


class Store(Protocol):
    """A tree of files below a URL."""

    def names(self, folder: str) -> list[str]:
        """All files in a folder and below; none if the folder is missing."""

    def read(self, name: str) -> bytes:
        """The content of a file; raises FileNotFoundError."""

    def create(self, name: str, data: bytes) -> None:
        """Create a file with its content at once; raises FileExistsError if there is one."""

    def spool(self, name: str) -> Path:
        """A path of this machine where the file that becomes `name` can be written."""

    def stage(self, names: Sequence[str]) -> None:
        """Store files that are completely written at their paths of `spool`."""

    def publish(self, moves: Sequence[Move]) -> None:
        """Give files their final names. One that has no temporary name any more has been moved."""

    def remove(self, names: Iterable[str]) -> None:
        """Delete files; a missing one is fine."""

    def discard(self, names: Iterable[str]) -> None:
        """Delete what was written for files that are not staged."""

    def check(self) -> None:
        """Raise an error unless the store answers. Changes nothing."""

    def close(self) -> None:
        """Release everything."""
