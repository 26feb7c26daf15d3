"""Chunks: thousands of rows of a snapshot in one message.

A chunk is an object with the facts of the snapshot and the rows in `data`. Each row is the same
object as in a change of shape `bridge`. Rows are encoded column by column into one buffer, so a
chunk is a slice of that buffer between a head and a tail.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import ormsgpack
import pyarrow as pa

from tailrace.decode import columns
from tailrace.encode.pieces import join
from tailrace.encode.rows import Rows
from tailrace.encode.syntaxes.json import Json
from tailrace.encode.syntaxes.msgpack import MessagePack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.decode.group import Group
    from tailrace.encode.shapes.shape_type import Encoding
    from tailrace.encode.syntaxes.syntax import Syntax

_ENVELOPE_BYTES = 1024
"""An upper limit for head and tail, without the facts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedChunk:
    """One message of a snapshot."""

    number: int
    rows: int
    payload: bytes


def row_objects(group: Group, encoding: Encoding, *, suffix: bytes = b"") -> pa.BinaryArray:
    """Each row as the object that a change of it has, followed by `suffix`."""
    assert group.after is not None
    syntax: Syntax = Json() if encoding == "json" else MessagePack()
    objects = Rows(group, syntax, native=False).object(group.after)
    return join([*objects, suffix], null=syntax.null)


class Chunker:
    """Cuts rows into chunks of at most `max_rows` and `max_bytes`.

    Chunks are numbered from `number` by `step`, so that several chunkers can number in parallel.
    The chunks depend on the rows and their order alone, not on the groups in which they come.
    """

    def __init__(
        self,
        facts: dict[str, Any],
        *,
        encoding: Encoding,
        max_rows: int,
        max_bytes: int,
        number: int = 0,
        step: int = 1,
    ) -> None:
        self._facts = facts
        self._encoding = encoding
        self._encode = _json if encoding == "json" else _msgpack
        self._separator = b"," if encoding == "json" else b""
        self._max_rows = max_rows
        self._max_bytes = max_bytes - _ENVELOPE_BYTES - len(json.dumps(facts).encode())
        self._number = number
        self._step = step
        self._left = pa.array([], pa.binary())

    def take(self, group: Group) -> Iterator[EncodedChunk]:
        """The chunks that these rows fill; the remaining rows wait for the next call."""
        rows = row_objects(group, self._encoding, suffix=self._separator)
        yield from self._cut(pa.concat_arrays([self._left, rows]), last=False)

    def rest(self) -> Iterator[EncodedChunk]:
        """The last chunk, if rows remain."""
        yield from self._cut(self._left, last=True)

    def _cut(self, rows: pa.BinaryArray, *, last: bool) -> Iterator[EncodedChunk]:
        bounds = columns.offsets(rows)
        at = 0
        while at < len(rows):
            fitting = int(np.searchsorted(bounds, bounds[at] + self._max_bytes, side="right")) - 1
            end = max(min(fitting, at + self._max_rows), at + 1)
            if end >= len(rows) and not last and end - at < self._max_rows:
                break
            yield self._chunk(rows.slice(at, end - at))
            at = end
        self._left = rows.slice(at)

    def _chunk(self, rows: pa.BinaryArray) -> EncodedChunk:
        bounds = columns.offsets(rows)
        body = columns.content(rows)[bounds[0] : bounds[-1] - len(self._separator)].tobytes()
        number, self._number = self._number, self._number + self._step
        payload = self._encode(self._facts | {"chunk": number}, body, len(rows))
        return EncodedChunk(number=number, rows=len(rows), payload=payload)


def _json(facts: dict[str, Any], body: bytes, _rows: int) -> bytes:
    head = json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode()
    return b'%s,"data":[%s]}' % (head[:-1], body)


def _msgpack(facts: dict[str, Any], body: bytes, rows: int) -> bytes:
    head = ormsgpack.packb(facts)
    # MessagePack's fixmap (up to 15 members) has the count in its first byte: one more for `data`.
    counted = bytes([head[0] + 1]) + head[1:]
    return b"%s\xa4data\xdd%s%s" % (counted, rows.to_bytes(4, "big"), body)
