"""The claim of a pipeline on its stream: which history its messages belong to, and since when.

Message ids hold positions, and positions are of one log. After a restore, LSNs are used again: a
message of the earlier history would pass for one that is already delivered. So the stream's
metadata holds a claim per pipeline, and reading back begins after it. What a pipeline finds when it
opens its stream:

| claim in the stream | the pipeline                 | what happens                                |
|---------------------|------------------------------|---------------------------------------------|
| the same history    |                              | read back from the claim on                 |
| none                | has delivered nothing yet    | claim from the stream's end on              |
| none                | has delivered before         | claim all of the stream: it lost its claim  |
| another history     | was reset                    | claim from the end on, after the duplicate  |
|                     |                              | window: the server still knows the ids      |
| another history     | was not reset                | DIVERGED                                    |

A claim is under the name of the slot and of the pipeline, and holds the subjects that the pipeline
publishes to. If those of another claim overlap, messages name their pipeline (`read_back`).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from tailrace.checkpoint import RESET
from tailrace.errors import DivergedError, SinkRefusedError, SinkUnreachableError
from tailrace.jetstream.claim import ALL, Claim, claims, key_of
from tailrace.jetstream.stream import checked, find_stream
from tailrace.jetstream.subjects import overlap

if TYPE_CHECKING:
    from typing import Any

    from tailrace.jetstream.connection import NatsConnection
    from tailrace.position import Position
    from tailrace.sinks.contract import Lane

_ATTEMPTS = 5
_FORGET_S = 2.0
"""The server removes old ids by a timer, somewhat later than the window says."""


def shared(info: dict[str, Any], lane: Lane, subjects: str) -> bool:
    """Whether another pipeline publishes to the subjects."""
    return any(
        overlap(claim.subjects, subjects)
        for owner, claim in claims(info).items()
        if owner != lane.owner
    )


def ensure(
    connection: NatsConnection,
    info: dict[str, Any],
    lane: Lane,
    *,
    after: Position,
    subjects: str = ALL,
) -> Claim:
    """The claim of the pipeline, recorded in the stream. Changes nothing but its metadata."""
    if not lane.history:
        return Claim()
    stream, key = info["config"]["name"], key_of(lane.owner)
    for _ in range(_ATTEMPTS):
        metadata = info["config"].get("metadata") or {}
        recorded = claims(info).get(lane.owner)
        if recorded is not None and recorded.history == lane.history:
            claim = replace(recorded, subjects=subjects)
        else:
            claim = replace(_next(recorded, info, lane, after), subjects=subjects)
        if claim == recorded:
            _wait_for_duplicate_window(recorded, info)
            return recorded
        config = info["config"] | {"metadata": metadata | {key: str(claim)}}
        answer = connection.request(f"$JS.API.STREAM.UPDATE.{stream}", config)
        checked(answer, f"record the history of pipeline {lane.pipeline} in stream {stream}")
        # Another pipeline may have replaced the metadata at the same time.
        info = find_stream(connection, stream) or info
    raise SinkRefusedError(
        f"stream {stream} does not keep its metadata",
        hint="The stream needs nats-server 2.10 or newer.",
    )


def _next(recorded: Claim | None, info: dict[str, Any], lane: Lane, after: Position) -> Claim:
    last, stream = int(info["state"]["last_seq"]), info["config"]["name"]
    if recorded is None:
        # A copy that was made before this claim is of another history if the pipeline was reset.
        since_s = int(_now(info)) if lane.reset else 0
        return Claim(lane.history, last if after == lane.began else 0, since_s)
    if not lane.reset:
        raise DivergedError(
            f"stream {stream} holds messages of pipeline {lane.pipeline} from the log "
            f"{recorded.history}, but this log is {lane.history}",
            hint=f"{RESET} If both are in use: each process needs a slot with a name of its own.",
        )
    return Claim(lane.history, last, int(_now(info)))


def _wait_for_duplicate_window(claim: Claim, info: dict[str, Any]) -> None:
    window_s = info["config"].get("duplicate_window", 0) / 1e9
    left_s = claim.since_s + window_s + _FORGET_S - _now(info)
    if claim.since_s and left_s > 0:
        raise SinkUnreachableError(
            f"stream {info['config']['name']} remembers the message ids of the earlier history for "
            f"another {left_s:.0f} s"
        )


def _now(info: dict[str, Any]) -> float:
    """The server's time."""
    return datetime.fromisoformat(info["ts"]).timestamp()
