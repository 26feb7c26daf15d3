"""The consumer's side: schemas, snapshots and changes out of NATS, in asyncio.

    async with tailrace.client.connect("nats://localhost:4222") as client:
        async for event in client.replica("users"):
            ...

client      what there is to call
access      what all calls share
connection  the connection to NATS, and its failures as our errors
names       tables in subjects, in keys, and as people write them
payload     bytes as messages
schemas     schema documents, and rows typed by them
pull        one JetStream consumer, asked for hundreds of messages at a time
readers     a stream's messages in its order, whatever happens to the line
iteration   what `async for` goes over
change      a change as a consumer sees it
snapshot    a table's rows at one moment
chunks      the same as they come, while the snapshot is being made
follow      changes from some point on
replica     a snapshot, and then exactly the changes that are not in it
transactions  those changes, in whole transactions
creek       the same of Creek's producers: Avro, one message a row

Needs neither PostgreSQL nor Spark.
"""

from tailrace.change import Op
from tailrace.client import creek
from tailrace.client.change import Change
from tailrace.client.chunks import Chunks
from tailrace.client.client import Client, connect
from tailrace.client.follow import Follow
from tailrace.client.replica import Replica, State
from tailrace.client.schemas import Column, Schema
from tailrace.client.snapshot import Chunk, Meta, Snapshot
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
    "Replica",
    "Schema",
    "Snapshot",
    "State",
    "Transactions",
    "connect",
    "creek",
]
