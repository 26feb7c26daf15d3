"""The shapes of messages, one entry each. Other packages register theirs as `tailrace.shapes`."""

from __future__ import annotations

from tailrace.encode.shapes.shape_type import ShapeType
from tailrace.registry import Registry

_BUILT_IN = (
    ShapeType(
        name="bridge",
        about="One object per change, as consumers of the bridge expect it.",
        encodings=("msgpack", "json"),
        document="tailrace.encode.shapes.bridge:Bridge",
        schema_documents=True,
    ),
    ShapeType(
        name="plain",
        about="Every fact of a change under its own name.",
        encodings=("json", "msgpack"),
        document="tailrace.encode.shapes.plain:Plain",
    ),
    ShapeType(
        name="debezium",
        about="The envelope of Debezium: before, after, source, op.",
        encodings=("json", "msgpack"),
        document="tailrace.encode.shapes.debezium:Debezium",
    ),
    ShapeType(
        name="sequin",
        about="The messages of Sequin: record, changes, action, metadata.",
        encodings=("json", "msgpack"),
        document="tailrace.encode.shapes.sequin:Sequin",
    ),
    ShapeType(
        name="row",
        about="The row alone, for sinks that store rows as documents.",
        encodings=("json", "msgpack"),
        document="tailrace.encode.shapes.row:Row",
    ),
    ShapeType(
        name="creek",
        about="The Avro messages of Creek, each with the fingerprint of its schema.",
        encodings=("avro", "avro-plain"),
        layout="tailrace.encode.creek.layout:CreekLayout",
        plain_layout="tailrace.encode.creek.layout:PlainCreekLayout",
        jetstream=True,
        # A schema is found by the table that it describes.
        whole_rows=True,
    ),
    ShapeType(
        name="record",
        about="Rows of kafka.messages as records, for the sink that copies the broker's topics.",
        encodings=("json",),
        records="tailrace.encode.records:Records",
        stages=False,
    ),
)
SHAPES: Registry[ShapeType] = Registry(
    "shape", group="tailrace.shapes", built_in={shape.name: shape for shape in _BUILT_IN}
)
