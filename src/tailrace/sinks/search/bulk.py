r"""Messages as the body of a bulk request: lines of JSON, built from whole columns.

    {"index":{"_index":"orders","_id":"7","version":4096,"version_type":"external_gte"}}
    {"id":7,"total":12}
    {"delete":{"_index":"orders","_id":"8","version":4608,"version_type":"external_gte"}}
    {"create":{"_index":"events","_id":"000000000191bfd0-0"}}
    {"@timestamp":1765540834338,"op":"insert"}

An update that changes the key has two items: it deletes the document of the old key.
"""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.decode import columns
from tailrace.sinks.search.destination import target_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace.sinks.search.settings import SearchSettings

_EMPTY = columns.constant(b"")


class Bulk(NamedTuple):
    """The body of a bulk request."""

    body: bytes
    rows: NDArray[np.int64]
    """The message of each item."""


class Targets(NamedTuple):
    """What the destinations of messages say."""

    index: pa.BinaryArray
    """The name of the index, as a string of JSON."""
    deletes: NDArray[np.bool_]
    truncates: NDArray[np.bool_]


def targets_of(destinations: pa.BinaryArray) -> Targets:
    """The destinations of mode `documents`, taken apart. Few are distinct."""
    coded = destinations.dictionary_encode()
    found = [target_of(each) for each in coded.dictionary.to_pylist()]
    names = pa.array([orjson.dumps(each.name) for each in found], pa.binary())
    codes = coded.indices.to_numpy()
    return Targets(
        names.take(coded.indices),
        np.array([each.deletes for each in found], np.bool_)[codes],
        np.array([each.truncates for each in found], np.bool_)[codes],
    )


def state_bulk(rows: pa.RecordBatch, versions: pa.BinaryArray) -> Bulk:
    """Documents are written and deleted. `versions` are in decimal."""
    targets = targets_of(rows.column("destination"))
    own = strings(pc.fill_null(rows.column("key"), b""))
    version = _joined(b',"version":', versions, b',"version_type":"external_gte"}}\n')
    written = _joined(
        _action(b"index", targets.index, own, version), _one_line(rows.column("payload")), b"\n"
    )
    deleted = _action(b"delete", targets.index, own, version)
    items = pc.if_else(pa.array(targets.deletes), deleted, written)
    items = pc.if_else(pa.array(targets.truncates), _EMPTY, items)
    counts = 1 - targets.truncates.astype(np.int64)
    former = rows.column("former")
    if former.null_count < len(former):
        old = _action(b"delete", targets.index, strings(pc.fill_null(former, b"")), version)
        moved = columns.valid(former)
        items = _joined(pc.if_else(pa.array(moved), old, _EMPTY), items)
        counts += moved
    return Bulk(columns.content(items).tobytes(), np.repeat(np.arange(rows.num_rows), counts))


def append_bulk(rows: pa.RecordBatch, settings: SearchSettings, *, generation: int) -> Bulk:
    """Documents are added, each under the id of its message.

    In another generation the same id is another change.
    """
    names = rows.column("destination").dictionary_encode()
    listed = [
        orjson.dumps(each.decode("utf-8", "replace")) for each in names.dictionary.to_pylist()
    ]
    index = pa.array(listed, pa.binary()).take(names.indices)
    start = b"%d." % generation if generation else b""
    ids = strings(_joined(start, rows.column("id")))
    action = _action(b"create", index, ids, b"}}\n")
    documents = _stamped(rows, settings) if settings.payload == "json" else _wrapped(rows, settings)
    items = _joined(action, documents, b"\n")
    return Bulk(columns.content(items).tobytes(), np.arange(rows.num_rows))


def _action(
    kind: bytes, index: pa.BinaryArray, ids: pa.BinaryArray, rest: bytes | pa.BinaryArray
) -> pa.BinaryArray:
    return _joined(b'{"%s":{"_index":' % kind, index, b',"_id":', ids, rest)


def _time(rows: pa.RecordBatch, settings: SearchSettings) -> pa.BinaryArray:
    """`"@timestamp":MILLISECONDS`."""
    milliseconds = rows.column("committed_at").to_numpy() // 1000
    name = orjson.dumps(settings.timestamp)
    return _joined(name + b":", columns.text_of(pa.array(milliseconds)))


def _stamped(rows: pa.RecordBatch, settings: SearchSettings) -> pa.BinaryArray:
    """Payloads, which are objects, with the time as their first member."""
    payloads = _one_line(rows.column("payload"))
    if not settings.timestamp:
        return payloads
    comma = pc.if_else(pc.equal(payloads, b"{}"), _EMPTY, columns.constant(b","))
    return _joined(b"{", _time(rows, settings), comma, _without_brace(payloads))


def _without_brace(payloads: pa.BinaryArray) -> pa.BinaryArray:
    """Objects without their first byte. (Arrow's `binary_slice` fails for some columns.)"""
    starts = columns.offsets(payloads)
    data = columns.content(payloads)
    keep = np.ones(len(data), np.bool_)
    keep[starts[:-1]] = False
    return columns.column(data[keep], columns.starts_of(np.diff(starts) - 1))


def _wrapped(rows: pa.RecordBatch, settings: SearchSettings) -> pa.BinaryArray:
    """Payloads in Base64, with the facts of their messages."""
    encoded = [
        binascii.b2a_base64(each, newline=False) for each in rows.column("payload").to_pylist()
    ]
    key = pc.fill_null(strings(rows.column("key")), b"null")
    time = _joined(_time(rows, settings), b",") if settings.timestamp else b""
    return _joined(
        b"{", time, b'"id":', strings(rows.column("id")), b',"key":', key,
        b',"payload":"', pa.array(encoded, pa.binary()), b'"}',
    )  # fmt: skip


def strings(values: pa.BinaryArray) -> pa.BinaryArray:
    r"""Strings of JSON; nulls stay null.

    >>> strings(pa.array([b"7", b'["a","b"]', b"\n", None], pa.binary())).to_pylist()
    [b'"7"', b'"[\\"a\\",\\"b\\"]"', b'"\\n"', None]
    """
    data = columns.content(values)
    if (data < 0x20).any():
        texts = values.to_pylist()
        return pa.array(
            [None if text is None else orjson.dumps(text.decode()) for text in texts], pa.binary()
        )
    for letter in (b"\\", b'"'):
        if (data == letter[0]).any():
            values = pc.replace_substring(values, letter, b"\\" + letter)
    return _joined(b'"', values, b'"')


def _one_line(payloads: pa.BinaryArray) -> pa.BinaryArray:
    """Columns of type json may have line breaks. In valid JSON they are blanks between tokens."""
    if (columns.content(payloads) == 0x0A).any():
        return pc.replace_substring(payloads, b"\n", b" ")
    return payloads


def _joined(*pieces: bytes | pa.BinaryArray) -> pa.BinaryArray:
    parts = [columns.constant(each) if isinstance(each, bytes) else each for each in pieces]
    return pc.binary_join_element_wise(*parts, _EMPTY)
