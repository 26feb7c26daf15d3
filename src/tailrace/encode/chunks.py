"""The rows of a snapshot as chunks: thousands of rows in one message.

A chunk is an object with the facts of the snapshot and the rows in `data`, each row the object that
a change of it has in shape `bridge`. Rows come encoded column by column into one buffer, so a chunk
is a stretch of that buffer between a head and a tail.
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
    from tailrace.encode.encoder import EncodingName
    from tailrace.encode.syntaxes.syntax import Syntax

_ENVELOPE_BYTES = 1024
"""More than head and tail take, beside the names in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedChunk:
    """One message of a snapshot."""

    number: int
    rows: int
    payload: bytes


def row_objects(group: Group, encoding: EncodingName, *, behind: bytes = b"") -> pa.BinaryArray:
    """Each row as the object a change of it has, with some bytes behind it."""
    assert group.after is not None
    syntax: Syntax = Json() if encoding == "json" else MessagePack()
    objects = Rows(group, syntax, native=False).object(group.after)
    return join([*objects, behind], null=syntax.null)


class Chunker:
    """Cuts rows into chunks of at most so many rows and bytes.

    Numbers begin at `number` and go up by `step`, so that several may count side by side. The same
    rows in the same order make the same chunks, however they are handed over.
    """

    def __init__(
        self,
        facts: dict[str, Any],
        *,
        encoding: EncodingName,
        most_rows: int,
        most_bytes: int,
        number: int = 0,
        step: int = 1,
    ) -> None:
        self._facts = facts
        self._encoding = encoding
        self._form = _json if encoding == "json" else _msgpack
        self._between = b"," if encoding == "json" else b""
        self._most_rows = most_rows
        self._most_bytes = most_bytes - _ENVELOPE_BYTES - len(json.dumps(facts).encode())
        self._number = number
        self._step = step
        self._left = pa.array([], pa.binary())

    def take(self, group: Group) -> Iterator[EncodedChunk]:
        """The chunks that are full with these rows; the rest is kept."""
        rows = row_objects(group, self._encoding, behind=self._between)
        yield from self._cut(pa.concat_arrays([self._left, rows]), last=False)

    def rest(self) -> Iterator[EncodedChunk]:
        """The last chunk, if there are rows left."""
        yield from self._cut(self._left, last=True)

    def _cut(self, rows: pa.BinaryArray, *, last: bool) -> Iterator[EncodedChunk]:
        bounds = columns.offsets(rows)
        at = 0
        while at < len(rows):
            fitting = int(np.searchsorted(bounds, bounds[at] + self._most_bytes, side="right")) - 1
            end = max(min(fitting, at + self._most_rows), at + 1)
            if end >= len(rows) and not last and end - at < self._most_rows:
                break
            yield self._chunk(rows.slice(at, end - at))
            at = end
        self._left = rows.slice(at)

    def _chunk(self, rows: pa.BinaryArray) -> EncodedChunk:
        bounds = columns.offsets(rows)
        body = columns.content(rows)[bounds[0] : bounds[-1] - len(self._between)].tobytes()
        number, self._number = self._number, self._number + self._step
        payload = self._form(self._facts | {"chunk": number}, body, len(rows))
        return EncodedChunk(number=number, rows=len(rows), payload=payload)


def _json(facts: dict[str, Any], body: bytes, _rows: int) -> bytes:
    head = json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode()
    return b'%s,"data":[%s]}' % (head[:-1], body)


def _msgpack(facts: dict[str, Any], body: bytes, rows: int) -> bytes:
    head = ormsgpack.packb(facts)
    # A map of up to fifteen members has its count in its first byte.
    counted = bytes([head[0] + 1]) + head[1:]
    return b"%s\xa4data\xdd%s%s" % (counted, rows.to_bytes(4, "big"), body)
