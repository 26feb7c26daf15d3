"""Formats: the messages of a snapshot in its stream. Everything else is shared by all formats.

format   the contract
chunked  chunks of many rows, one subject per chunk, then metadata: `Rows` and `Copied`
creek    a header, one message per row, EOF, all on one subject: `CreekFormat`
"""

from tailrace.snapshot.formats.chunked import Chunked, Copied, Rows
from tailrace.snapshot.formats.creek import CreekFormat
from tailrace.snapshot.formats.format import Format, Part, Piece, SnapshotTotals, StoredMessages

__all__ = [
    "Chunked",
    "Copied",
    "CreekFormat",
    "Format",
    "Part",
    "Piece",
    "Rows",
    "SnapshotTotals",
    "StoredMessages",
]
