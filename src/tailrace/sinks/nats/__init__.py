"""NATS JetStream: a message a change, deduplicated by its id, read back after a cut.

    login         addresses, credentials and TLS of the settings
    line          one connection: a blocking socket that speaks the protocol's few verbs
    protocol      bytes → messages
    subjects      which destinations a stream takes
    frames        a whole batch → bytes
    transactions  which rows belong together in an atomic batch
    acks          counts what the server has stored
    publisher     the bulk path: frames out, acks in
    stream        the stream itself: made, compared, never altered
    parcels       messages of snapshots, known by their subjects or ids
    stored        what an earlier attempt left in the stream beyond a position
    sink          `JetStream`, which holds to the contract of `tailrace.sinks.contract`

The client library `nats-py` spends a coroutine a message, six times what everything here costs
together, so it is not on this path; its companion `nkeys` signs the login.
"""

from tailrace.sinks.nats.parcels import Parcel, Parcels
from tailrace.sinks.nats.sink import JetStream
from tailrace.sinks.nats.stream import Finding, inspect, probe, stream_info

__all__ = ["Finding", "JetStream", "Parcel", "Parcels", "inspect", "probe", "stream_info"]
