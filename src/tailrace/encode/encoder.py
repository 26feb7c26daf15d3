"""Groups of changes → messages: layout and destination in one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from tailrace.decode import columns
from tailrace.encode.creek.layout import CreekLayout
from tailrace.encode.facts import Origin
from tailrace.encode.keys import keys
from tailrace.encode.layout import Documents
from tailrace.encode.pieces import where
from tailrace.encode.shapes.bridge import Bridge
from tailrace.encode.shapes.debezium import Debezium
from tailrace.encode.shapes.plain import Plain
from tailrace.encode.shapes.sequin import Sequin
from tailrace.encode.syntaxes.json import Json
from tailrace.encode.syntaxes.msgpack import MessagePack
from tailrace.jetstream.names import MESSAGES as MESSAGE_SCHEMA
from tailrace.message import MESSAGES

if TYPE_CHECKING:
    from tailrace.decode.group import Group
    from tailrace.encode.layout import Layout
    from tailrace.encode.shapes.shape import Shape
    from tailrace.sinks.destination import Template

__all__ = ["Encoder", "Origin", "ShapeName"]

ShapeName = Literal["bridge", "creek", "debezium", "sequin", "plain", "record"]
"""`record` has columns of its own, `tailrace.encode.records`."""
EncodingName = Literal["json", "msgpack", "avro"]


class Encoder:
    """Encodes groups. Holds no state between them and may be pickled."""

    def __init__(
        self,
        *,
        shape: ShapeName,
        encoding: EncodingName,
        destinations: Template,
        origin: Origin,
    ) -> None:
        self._layout = _layout(shape, encoding)
        self._usual = destinations
        self._origin = origin

    def encode(
        self,
        group: Group,
        *,
        destination: pa.BinaryArray | None = None,
        key: pa.BinaryArray | None = None,
    ) -> pa.RecordBatch:
        """A message a change, in the group's order.

        `destination` and `key` take the place of the subject and of the row's key; where a
        destination is null the subject stays. Text that is not UTF-8 raises `PoisonedError`.
        """
        if not len(group):
            return pa.RecordBatch.from_pylist([], schema=MESSAGES)
        if destination is None or destination.null_count == len(group):
            destination = self._destinations(group)
        elif destination.null_count:
            usual = _column(self._destinations(group), len(group))
            destination = where(columns.valid(destination), destination, usual)
        ids, payload = self._layout.messages(group, self._origin, destination)
        return pa.RecordBatch.from_arrays(
            [
                _column(destination, len(group)),
                ids,
                keys(group) if key is None else key,
                payload,
                pa.array(group.lsn),
                pa.array(group.ordinal),
                pa.array(group.committed_at),
            ],
            schema=MESSAGES,
        )

    def _destinations(self, group: Group) -> str | pa.BinaryArray:
        if group.relation is not None:
            return self._usual.of(group.relation, group.op)
        assert group.prefixes is not None
        coded = group.prefixes.dictionary_encode()
        subjects = [
            self._usual.fill(MESSAGE_SCHEMA, prefix, group.op).encode()
            for prefix in coded.dictionary.to_pylist()
        ]
        return pa.array(subjects, pa.binary()).take(coded.indices)


def _column(destination: str | pa.BinaryArray, count: int) -> pa.BinaryArray:
    if isinstance(destination, str):
        return pa.repeat(pa.scalar(destination.encode(), pa.binary()), count)
    return destination


_SHAPES: dict[str, type[Shape]] = {
    "bridge": Bridge, "debezium": Debezium, "sequin": Sequin, "plain": Plain,
}  # fmt: skip


def _layout(shape: ShapeName, encoding: EncodingName) -> Layout:
    if shape == "creek":
        return CreekLayout()
    return Documents(_SHAPES[shape](), Json() if encoding == "json" else MessagePack())
