"""State files: one small JSON document per file, typed, replaced atomically.

For everything small that a component keeps in the data folder between runs. Not for the log (its
formats are in `tailrace.log.format`), nor for Spark's checkpoints.
"""

from __future__ import annotations

import errno
import os
import threading
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from tailrace.errors import CorruptError, StorageError
from tailrace.file_lock import locked
from tailrace.log.store import LocalStore, raise_translated

if TYPE_CHECKING:
    from collections.abc import Hashable
    from contextlib import AbstractContextManager
    from pathlib import Path

T = TypeVar("T")
D = TypeVar("D")


@cache
def _adapter_of(kind: Hashable) -> TypeAdapter[Any]:
    # Building an adapter takes 3 ms; services read folders of state files several times a second.
    return TypeAdapter(cast("type[Any]", kind))


class StateFile(Generic[T]):
    """A file that holds one value of a dataclass, a pydantic model or a plain JSON type.

    `write` is durable when it returns, leaves the old value or the new one after a crash, and
    writes nothing when the value has not changed since the last write. With `durable=False` it
    does not sync, does not create the folder, and the value may be gone after a power cut. On a
    full disk it overwrites the old value in place. To change a value that others change, too, read
    and write it inside `exclusive`.
    """

    def __init__(self, path: Path, kind: type[T], *, durable: bool = True) -> None:
        self.path = path
        self._durable = durable
        self._adapter: TypeAdapter[T] = _adapter_of(cast("Hashable", kind))
        self._written: bytes | None = None

    def read(self) -> T | None:
        """The value; None if there is no file. Raises CorruptError if it is something else, and
        StorageError if it cannot be read."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise_translated(error, f"cannot read {self.path}")
        try:
            return self._adapter.validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise CorruptError(
                f"the state file {self.path} is invalid: {place or 'content'}: {first['msg']}",
                hint="Restore it from a backup, or remove it where its component can rebuild it.",
            ) from error

    def read_or(self, default: D) -> T | D:
        """The value, or the default if the file is missing or invalid: for what can be rebuilt."""
        try:
            value = self.read()
        except (CorruptError, StorageError):
            return default
        return default if value is None else value

    def exclusive(self) -> AbstractContextManager[None]:
        """Keep all others that use this lock from changing the value."""
        # What others have written meanwhile may not look like the last value of this object.
        self._written = None
        return locked(self.path.with_suffix(".lock"))

    def write(self, value: T) -> None:
        """Replace the value."""
        content = self._adapter.dump_json(value)
        if content != self._written:
            if self._durable:
                LocalStore(self.path.parent, create=True).write_atomic(self.path.name, content)
            else:
                self._replace(content)
            self._written = content

    def _replace(self, content: bytes) -> None:
        # Two processes or threads may write the same file at the same time.
        writer = f"{os.getpid()}-{threading.get_native_id()}"
        temporary = self.path.with_name(f"{self.path.name}.{writer}.tmp")
        try:
            temporary.write_bytes(content)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            if error.errno != errno.ENOSPC:
                raise
            self._overwrite(content)
        else:
            temporary.replace(self.path)

    def _overwrite(self, content: bytes) -> None:
        """Use the space that the file has. A reader may see a mixture, which is invalid JSON."""
        with self.path.open("r+b", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, len(content))
            file.write(content)
            file.truncate()

    def remove(self) -> None:
        """Remove the file, if there is one."""
        self.path.unlink(missing_ok=True)
        self._written = None
