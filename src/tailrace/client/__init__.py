"""Client library for asyncio: reads schemas, snapshots and changes from NATS JetStream.

    async with tailrace.client.connect("nats://localhost:4222") as client:
        async for event in client.replica("users"):
            ...

client             `connect` and `Client`: the calls
access             the state that all calls of one client share
connection         the connection to NATS; errors of nats-py as errors of Tailrace
names              table names in subjects, in bucket keys, and as users write them
payload            JSON and MessagePack messages
schemas            schema documents, and rows typed by them
readers/           messages of a stream in order, across reconnects
iteration          the base class of everything that `async for` iterates over
change             one change
snapshots/         snapshots on request: complete, or chunk by chunk while they are written
identity           what identifies a stream, and the history of its messages
follow             changes of a table from a start position
replica            a snapshot, then the changes that it does not contain
transactions       the same changes, in whole transactions
consumer           messages of a pipeline with the sink `pull`, over HTTP
creek/             the same for Creek's producers: Avro, one message per row

It connects to NATS, and `consumer` to the HTTP endpoints. It needs neither PostgreSQL nor Spark,
and imports without the libraries for them.
"""

from tailrace.change import Op
from tailrace.client import creek
from tailrace.client.change import Change
from tailrace.client.client import Client, connect
from tailrace.client.consumer import PullConsumer, PulledMessage, pull
from tailrace.client.follow import Follow
from tailrace.client.identity import StreamIdentity
from tailrace.client.replica import Replica, State
from tailrace.client.schemas import Column, Schema
from tailrace.client.snapshots.chunks import Chunks
from tailrace.client.snapshots.messages import Chunk, Meta
from tailrace.client.snapshots.snapshot import Snapshot
from tailrace.client.transactions import Batch, Transactions

__all__ = [
    "Batch",
    "Change",
    "Chunk",
    "Chunks",
    "Client",
    "Column",
    "Follow",
    "Meta",
    "Op",
    "PullConsumer",
    "PulledMessage",
    "Replica",
    "Schema",
    "Snapshot",
    "State",
    "StreamIdentity",
    "Transactions",
    "connect",
    "creek",
    "pull",
]
