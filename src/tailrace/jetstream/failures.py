"""Errors of JetStream as errors of sinks: which pass by themselves, and which need an operator.

The numbers are `err_code` of nats-server. Its HTTP-like `code` does not decide: 400 and 500 are
used for wrong settings and for a cluster that elects a leader alike.

| situation                                            | error            |
|------------------------------------------------------|------------------|
| no leader, no quorum, too few servers, a message or  | SINK_UNREACHABLE |
| batch that was interrupted by an election            |                  |
| no memory, no storage, a limit of the account        | SINK_FULL        |
| JetStream is not enabled, and everything else        | SINK_REFUSED     |
"""

from __future__ import annotations

from tailrace.errors import SinkError, SinkFullError, SinkRefusedError, SinkUnreachableError

_UNAVAILABLE = 503
_NO_PEERS = 10005
_FULL = frozenset({10002, 10023, 10028, 10047})
"""Limits of the account exceeded; insufficient resources, memory, storage."""
_NOT_ENABLED = frozenset({10039, 10076})
_PASSING = frozenset(
    {
        10007,  # the cluster has not assigned the stream to this server
        10009,  # not the leader
        10012,  # the consumer could not be created
        10014,  # the consumer is gone: its server is down
        10041,  # the stream's Raft group
        10104,  # the store of the consumer
        10118,  # stream offline
        10119,  # consumer offline
        10158,  # the same id is being stored, by an attempt that was cut off
        10167,  # too many requests
        10176,  # atomic batch incomplete: a new leader has not received its first messages
        10194,  # stream offline, with the reason
        10195,  # consumer offline, with the reason
        10202,  # a server joins or leaves the cluster
        10210,  # too many atomic batches, also those of lost connections
    }
)


def error_of(text: str, *, code: int, err_code: int) -> SinkError:
    """The error for an answer of JetStream."""
    if err_code in _FULL:
        return SinkFullError(text)
    if err_code in _NOT_ENABLED:
        return SinkRefusedError(text, hint="Enable JetStream on the server and for the account.")
    if err_code == _NO_PEERS:
        return SinkUnreachableError(
            text,
            hint="If it stays like this: the cluster has fewer servers than stream.replicas.",
        )
    if err_code in _PASSING or code == _UNAVAILABLE:
        return SinkUnreachableError(text)
    return SinkRefusedError(text)
