"""How snapshots lie in their streams: one object says it all, and the rest of the way is shared.

format   the seam
chunked  chunks of many rows under subjects of their own, then metadata: `Rows` and `Copied`
creek    a header, a message a row, EOF: all under one subject
"""

from tailrace.snapshot.formats.chunked import Chunked, Copied, Rows
from tailrace.snapshot.formats.creek import CreekFormat
from tailrace.snapshot.formats.format import Format, Made, Part, Piece, StoredChunks

__all__ = [
    "Chunked",
    "Copied",
    "CreekFormat",
    "Format",
    "Made",
    "Part",
    "Piece",
    "Rows",
    "StoredChunks",
]
