"""What the rest of Tailrace knows about a shape: one object per shape, found by its name.

Light on purpose: settings are checked in processes that never encode anything, such as capture. The
code of a shape is named by its path and loaded where it encodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from tailrace.registry import load

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.decode.group import Group
    from tailrace.encode.facts import Origin
    from tailrace.encode.layout import Layout
    from tailrace.sinks.destination import Template

Encoding = Literal["msgpack", "json", "avro", "avro-plain"]

# ruff: noqa: PLC0415 - the encoders are loaded where they encode


class GroupEncoder(Protocol):
    """Encodes groups of changes, whole columns at a time."""

    def encode(
        self,
        group: Group,
        *,
        destination: pa.BinaryArray | None = None,
        key: pa.BinaryArray | None = None,
    ) -> pa.RecordBatch:
        """One message per change, in the group's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeType:
    """A shape: how changes become messages, and which settings fit it."""

    name: str
    about: str
    """One sentence for the reference."""
    encodings: tuple[Encoding, ...]
    """What its messages can be written in; the first is the default."""
    document: str = ""
    """`module:Class` of a `Shape`, for messages that are JSON or MessagePack documents."""
    layout: str = ""
    """`module:Class` of a `Layout`, for messages in a format of their own."""
    plain_layout: str = ""
    """The same for the encoding `avro-plain`."""
    records: str = ""
    """`module:Class` of an encoder for a sink that takes records instead of messages."""
    jetstream: bool = False
    """Whether its services (schemas, requests) need the pipeline's sink to be a NATS server."""
    whole_rows: bool = False
    """Whether a message is a whole row: `select` and `messages` do not fit."""
    stages: bool = True
    """Whether `where`, `select`, `route`, `key` and several lanes fit."""
    schema_documents: bool = False
    """Whether consumers find schema documents of the tables in a bucket."""

    def encoder(
        self, encoding: Encoding, *, destinations: Template, origin: Origin
    ) -> GroupEncoder:
        """The encoder of a pipeline with this shape."""
        if self.records:
            records: GroupEncoder = load(self.records)()
            return records
        from tailrace.encode.encoder import Encoder

        layout = self.make_layout(encoding)
        return Encoder(layout=layout, destinations=destinations, origin=origin)

    def make_layout(self, encoding: Encoding) -> Layout:
        """Ids and payloads in an encoding."""
        path = self.plain_layout if encoding == "avro-plain" else self.layout
        if path:
            layout: Layout = load(path)()
            return layout
        from tailrace.encode.layout import Documents
        from tailrace.encode.syntaxes.json import Json
        from tailrace.encode.syntaxes.msgpack import MessagePack

        return Documents(load(self.document)(), Json() if encoding == "json" else MessagePack())
