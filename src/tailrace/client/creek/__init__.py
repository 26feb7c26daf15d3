"""Client of Creek's producers: changes, schemas and snapshots in Avro, over NATS.

    from tailrace.client import creek

    async with creek.connect("nats://localhost:4222", namespace="CREEK") as client:
        async for wal in client.stream_wal("shop", "public.users"):
            ...

The calls and objects are those of Creek's own client for Go.

creek         `connect` and `Creek`: the calls
session       the state that all calls of one client share; requests to producers
schemas       schema messages, and a cache of them
packets       messages that are divided into several packets
avro          messages decoded by their schemas
values        Avro values as Python values
wal           changes
snapshot      the rows of a table at one point in time
feed          both, in the form that mirrors read
transactions  the changes of a feed
table_schema  the columns and key of a table, from an Avro schema

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
from tailrace.client.creek.wal import StreamWal, Wal, WalSource

__all__ = [
    "Creek",
    "Feed",
    "SchemaMessage",
    "Snapshot",
    "SnapshotFailedError",
    "SnapshotHeader",
    "SnapshotTopic",
    "StreamWal",
    "UnknownSchemaError",
    "Wal",
    "WalSource",
    "connect",
]
