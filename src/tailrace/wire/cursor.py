"""A bounds-checked reader over the bytes of one message.

Every length and count is compared with the remaining bytes before anything is allocated. Bytes that
do not fit raise `MalformedError` with what was expected, at which byte, in which message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.errors import MalformedError

if TYPE_CHECKING:
    from struct import Struct


class Cursor:
    """Reads forward through one message. `subject` names the message in errors.

    `data` and `offset` are public for the row reader, which reads many small values and cannot
    afford a call per value.
    """

    __slots__ = ("data", "offset", "subject")

    def __init__(self, data: bytes, subject: str, offset: int = 0) -> None:
        self.data = data
        self.subject = subject
        self.offset = offset

    def take(self, layout: Struct, what: str) -> tuple[Any, ...]:
        """The fixed fields of `layout`."""
        start = self.offset
        end = start + layout.size
        if end > len(self.data):
            raise self.malformed(f"{what} in {layout.size} bytes", start)
        self.offset = end
        return layout.unpack_from(self.data, start)

    def count(self, layout: Struct, item_bytes: int, what: str) -> int:
        """The number of items that follow, each of at least `item_bytes`."""
        start = self.offset
        number: int = self.take(layout, f"a count of {what}")[0]
        if not 0 <= number * item_bytes <= len(self.data) - self.offset:
            raise self.malformed(f"a count of {what} that fits the message", start, str(number))
        return number

    def letter(self, allowed: bytes, what: str) -> bytes:
        """One byte of `allowed`."""
        start = self.offset
        letter = self.data[start : start + 1]
        if not letter or letter not in allowed:
            raise self.malformed(f"{what} out of {allowed!r}", start)
        self.offset = start + 1
        return letter

    def name(self, what: str) -> str:
        """A NUL-terminated name in UTF-8."""
        start = self.offset
        end = self.data.find(b"\0", start)
        if end < 0:
            raise self.malformed(f"{what} with a NUL at its end", start)
        self.offset = end + 1
        try:
            return self.data[start:end].decode()
        except UnicodeDecodeError as error:
            raise self.malformed(f"{what} in UTF-8", start + error.start) from error

    def counted(self, layout: Struct, what: str) -> bytes:
        """Bytes that are preceded by their length."""
        start = self.offset
        length: int = self.take(layout, f"the length of {what}")[0]
        end = self.offset + length
        if length < 0 or end > len(self.data):
            raise self.malformed(f"a length of {what} that fits the message", start, str(length))
        content = self.data[self.offset : end]
        self.offset = end
        return content

    def rest(self) -> bytes:
        """Everything up to the end of the message."""
        start, self.offset = self.offset, len(self.data)
        return self.data[start:]

    def finish(self) -> None:
        """Refuse bytes after the last field."""
        if self.offset != len(self.data):
            left = len(self.data) - self.offset
            raise self.malformed("the end of the message", self.offset, f"{left} more bytes")

    def malformed(self, expected: str, offset: int, found: str = "") -> MalformedError:
        """The error for bytes at `offset` that are not what was `expected`."""
        if not found:
            found = repr(self.data[offset : offset + 8]) if self.data[offset:] else "the end"
        return MalformedError(
            f"{self.subject}: expected {expected} at byte {offset}, found {found}"
        )


def write_name(name: str) -> bytes:
    """A name in wire form: UTF-8, terminated by a NUL."""
    if "\0" in name:
        raise MalformedError(f"a name on the wire cannot contain a NUL, got {name!r}")
    return name.encode() + b"\0"
