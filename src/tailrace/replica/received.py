"""What a follower keeps of its leader's small state: the newest whole bundle of each name.

They stay packed in the folder `replica` of the data folder until this machine leads
(`tailrace.replica.adopt`).
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import IO, TYPE_CHECKING

import structlog
from crc32c import crc32c

from tailrace import private
from tailrace.errors import MalformedError
from tailrace.log.store import sync_folder
from tailrace.replica.frames import Stored
from tailrace.replica.small_state import SUFFIX, folder_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from tailrace.replica.frames import Buffer, BundleHead

_NAME = re.compile(r"[a-z0-9_][a-z0-9._-]{0,120}")
_TEMPORARY = ".tmp"


class Received:
    """The folder of the bundles, and the one that is being received."""

    def __init__(self, data: Path) -> None:
        self._folder = folder_of(data)
        self._head: BundleHead | None = None
        self._file: IO[bytes] | None = None
        self._left = self._crc = 0
        self.failing = False
        """Whether the last bundle could not be written. The log does not wait for it."""

    def names(self) -> list[str]:
        """The bundles that this machine has."""
        return sorted(path.name.removesuffix(SUFFIX) for path in self._folder.glob(f"*{SUFFIX}"))

    def keep(self, names: Collection[str]) -> None:
        """Remove the bundles with other names."""
        for name in set(self.names()).difference(names):
            (self._folder / f"{name}{SUFFIX}").unlink(missing_ok=True)

    def begin(self, head: BundleHead) -> None:
        """A bundle follows. Raises MalformedError."""
        if self._head is not None or not _NAME.fullmatch(head.name) or head.size <= 0:
            raise MalformedError(f"a frame BUNDLE is out of place, or names {head.name!r}")
        self._head, self._left, self._crc = head, head.size, 0
        with self._written():
            private.create_folder(self._folder)
            self._file = private.create_file(self._temporary(head))

    def take(self, content: Buffer) -> bool:
        """The next bytes; whether they complete the bundle. Raises MalformedError."""
        if self._head is None or not 0 < len(content) <= self._left:
            raise MalformedError("a frame CONTENT is out of place")
        self._left -= len(content)
        self._crc = crc32c(content, self._crc)
        if self._file is not None:
            with self._written():
                self._file.write(content)
        return not self._left

    def complete(self) -> Stored | None:
        """Keep the bundle in place of the one before; None if it cannot be written.

        Raises MalformedError.
        """
        head, stored = self._head, None
        assert head is not None
        if self._crc != head.crc:
            raise MalformedError(f"the checksum of the bundle {head.name} does not match")
        if self._file is not None:
            with self._written():
                self._file.flush()
                os.fsync(self._file.fileno())
                self._temporary(head).replace(self._folder / f"{head.name}{SUFFIX}")
                sync_folder(self._folder)
                self.failing = False
                stored = Stored(name=head.name, crc=head.crc)
        self.discard()
        return stored

    def discard(self) -> None:
        """Forget the bundle that is being received."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        if self._head is not None:
            self._temporary(self._head).unlink(missing_ok=True)
        self._file = self._head = None

    def _temporary(self, head: BundleHead) -> Path:
        return self._folder / f"{head.name}{_TEMPORARY}"

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        """A full disk must not end the copy of the log: the bundle is left out."""
        try:
            yield
        except OSError as error:
            if not self.failing:
                self.failing = True
                structlog.get_logger().warning("replica.state_unwritten", reason=str(error))
            if self._file is not None:
                with contextlib.suppress(OSError):
                    self._file.close()
                self._file = None
