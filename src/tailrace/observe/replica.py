"""Figures of replicas: what a leader knows of its followers, and what a follower is doing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from tailrace.observe.figure import (
    Figure,
    Figures,
    LsnText,
    counter,
    gauge,
)
from tailrace.position import Lsn


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerFigures(Figures):
    """A follower, as its leader sees it."""

    LABELS: ClassVar = {"follower": "address"}

    address: Annotated[str, Figure("Address of the follower.")] = ""
    node: Annotated[str, Figure("Name of its machine, as it says.")] = ""
    state: Annotated[
        str,
        Figure(
            "connecting, catching-up, streaming, or the code of the last error.",
            gauge(
                "tailrace_replica_state",
                help="1 for the present state of a follower.",
                value_label="state",
            ),
        ),
    ] = "connecting"
    reason: Annotated[str, Figure("The last error; empty while connected.")] = ""
    version: Annotated[int, Figure("Version of the protocol.")] = 0
    connected: Annotated[
        bool, Figure("1 while the follower is connected.", gauge("tailrace_replica_connected"))
    ] = False
    acknowledged: Annotated[
        LsnText,
        Figure("LSN up to which the follower is durable.", gauge("tailrace_replica_lsn")),
    ] = Lsn(0)  # noqa: RUF009 - an int, and as immutable
    lag_bytes: Annotated[
        int | None,
        Figure("Bytes of log that the follower lacks.", gauge("tailrace_replica_lag_bytes")),
    ] = None
    lag_s: Annotated[
        float | None,
        Figure(
            "Seconds between the last commit here and on the follower.",
            gauge("tailrace_replica_lag_seconds"),
        ),
    ] = None
    bytes: Annotated[
        int, Figure("Bytes sent to the follower.", counter("tailrace_replica_sent_bytes"))
    ] = 0
    state_lacking: Annotated[
        int,
        Figure(
            "Pipelines whose newest state the follower has not stored.",
            gauge("tailrace_replica_state_lacking"),
        ),
    ] = 0
    state_bytes: Annotated[
        int,
        Figure(
            "Bytes of the pipelines' state sent to the follower.",
            counter("tailrace_replica_state_sent_bytes"),
        ),
    ] = 0
    connections: Annotated[
        int, Figure("Connections to the follower.", counter("tailrace_replica_connections"))
    ] = 0
    resets: Annotated[
        int,
        Figure("How often the follower had to start over.", counter("tailrace_replica_resets")),
    ] = 0

    @property
    def reconnects(self) -> int:
        """Connections after the first."""
        return max(self.connections - 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderFigures(Figures):
    """The process of a leader that sends the log."""

    state: Annotated[str, Figure("starting, replicating, stopped, or an error code.")] = "starting"
    mode: Annotated[str, Figure("async or sync.")] = ""
    epoch: Annotated[
        int | None, Figure("Epoch of the log.", gauge("tailrace_replication_epoch"))
    ] = None
    quorum: Annotated[
        int,
        Figure(
            "Followers that must have a change before PostgreSQL may forget it.",
            gauge("tailrace_replication_quorum"),
        ),
    ] = 0
    quorum_lsn: Annotated[
        LsnText | None,
        Figure(
            "LSN up to which a quorum of followers is durable.",
            gauge("tailrace_replication_quorum_lsn"),
        ),
    ] = None
    in_quorum: Annotated[
        bool | None,
        Figure(
            "1 while enough followers are connected for a quorum.",
            gauge("tailrace_replication_in_quorum"),
        ),
    ] = None
    followers: Annotated[tuple[FollowerFigures, ...], Figure("The followers.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowingFigures(Figures):
    """The process of a follower."""

    state: Annotated[
        str,
        Figure(
            "waiting, following, CORRUPT (following, and a segment cannot be read), or the code of "
            "the last error.",
            gauge(
                "tailrace_follower_state",
                help="1 for the present state of the process that follows.",
                value_label="state",
            ),
        ),
    ] = ""
    reason: Annotated[str, Figure("The last error, or what cannot be read; otherwise empty.")] = ""
    connected: Annotated[
        bool, Figure("1 while a leader is connected.", gauge("tailrace_follower_connected"))
    ] = False
    leader: Annotated[str, Figure("Address of the leader.")] = ""
    leader_node: Annotated[str, Figure("Name of the leader's machine, as it says.")] = ""
    epoch: Annotated[
        int | None, Figure("Epoch of the leader.", gauge("tailrace_follower_epoch"))
    ] = None
    end_lsn: Annotated[
        LsnText | None,
        Figure("LSN up to which this copy is durable.", gauge("tailrace_follower_lsn")),
    ] = None
    last_heard_s: Annotated[
        float | None,
        Figure(
            "Seconds since the last frame of the leader.",
            gauge("tailrace_follower_silence_seconds"),
        ),
    ] = None
    bytes: Annotated[
        int, Figure("Bytes written to the copy.", counter("tailrace_follower_written_bytes"))
    ] = 0
    bundles: Annotated[
        int,
        Figure(
            "Pipelines of the leader whose state is here, and one for what they share.",
            gauge("tailrace_follower_bundles"),
        ),
    ] = 0
    bundles_received: Annotated[
        int,
        Figure(
            "How often the state of a pipeline was received.",
            counter("tailrace_follower_bundles_received"),
        ),
    ] = 0
    resets: Annotated[
        int, Figure("How often the copy started over.", counter("tailrace_follower_resets"))
    ] = 0
    cut_bytes: Annotated[
        int,
        Figure(
            "Bytes in the folder cut of the log: what was removed and kept.",
            gauge("tailrace_follower_cut_bytes"),
        ),
    ] = 0
    repairs: Annotated[
        int,
        Figure(
            "Segments that could not be read and were fetched again.",
            counter("tailrace_follower_repairs"),
        ),
    ] = 0
    scrubs: Annotated[
        int,
        Figure(
            "How often all sealed segments were read and checked.",
            counter("tailrace_follower_scrubs"),
        ),
    ] = 0
