"""Creek's producers, read by consumers: changes, schemas and snapshots in Avro, over NATS.

    from tailrace.client import creek

    async with creek.connect("nats://localhost:4222", namespace="CREEK") as client:
        async for wal in client.stream_wal("shop", "public.users"):
            ...

The objects are those of Creek's own client for Go.

creek       what there is to call
session     what all calls share
schemas     schemas, and those in memory
avro        messages read by their schemas
values      Avro's values as Python's
wal         changes
snapshot    a table's rows at one moment
feed        both, as mirrors take them
transactions  the changes of a feed
described   what a table looks like, by its schema

Needs fastavro: pip install 'tailrace[creek]'
"""

from tailrace.client.creek.creek import Creek, connect
from tailrace.client.creek.feed import Feed
from tailrace.client.creek.schemas import SchemaMessage
from tailrace.client.creek.session import UnknownSchemaError
from tailrace.client.creek.snapshot import (
    Snapshot,
    SnapshotFailedError,
    SnapshotHeader,
    SnapshotTopic,
)
from tailrace.client.creek.wal import Source, StreamWal, Wal

__all__ = [
    "Creek",
    "Feed",
    "SchemaMessage",
    "Snapshot",
    "SnapshotFailedError",
    "SnapshotHeader",
    "SnapshotTopic",
    "Source",
    "StreamWal",
    "UnknownSchemaError",
    "Wal",
    "connect",
]
