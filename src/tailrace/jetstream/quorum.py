"""The quorum of a replicated stream: whether what the leader says of the stream is final.

A leader that has lost its followers answers requests for some ten seconds more, and accepts
messages that it cannot store yet. They are stored when the followers are back, or when a leader is
elected that has them, even if the publisher has given them up long before. Reading back in between
does not find them, and the publisher would send them again. The server's own deduplication refuses
them only within the duplicate window.

A new connection to a replicated stream therefore waits until most replicas follow the leader, and
until the leader has had time to store what it took over.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING

from tailrace.errors import SinkUnreachableError
from tailrace.jetstream.stream import find_stream

if TYPE_CHECKING:
    from typing import Any

    from tailrace.jetstream.connection import NatsConnection

_CONTACT_S = 3.0
"""Followers answer a heartbeat every second."""
_SETTLED_S = 2.0
_POLL_S = 0.2


def await_quorum(
    connection: NatsConnection, info: dict[str, Any], *, timeout_s: float
) -> dict[str, Any]:
    """The description of a stream, `info` or a later one, whose leader has a quorum."""
    deadline = time.monotonic() + timeout_s
    stream = info["config"]["name"]
    while (reason := unsettled(info)) is not None:
        if time.monotonic() > deadline:
            raise SinkUnreachableError(f"stream {stream} {reason}")
        time.sleep(_POLL_S)
        info = find_stream(connection, stream) or info
    return info


def unsettled(info: dict[str, Any]) -> str | None:
    """Why the state of a stream is not final; None if it is."""
    size = int(info["config"].get("num_replicas", 1))
    cluster = info.get("cluster") or {}
    if size == 1:
        return None
    if not cluster.get("leader"):
        return "has no leader"
    following = [
        replica
        for replica in cluster.get("replicas") or ()
        if replica.get("current") and replica.get("active", 0) / 1e9 < _CONTACT_S
    ]
    if len(following) + 1 <= size // 2:
        return f"has no quorum: {len(following) + 1} of {size} replicas answer"
    since = cluster.get("leader_since")
    if since and _seconds(info["ts"]) - _seconds(since) < _SETTLED_S:
        return f"has elected {cluster['leader']} just now"
    return None


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
