"""What identifies a stream: when it was created, and which history its pipelines deliver.

A consumer that keeps a copy of a table stores both with its position. A position in a stream that
was created again is lost. In a stream whose pipeline delivers another history, the copy may hold
changes that the source no longer has: it is DIVERGED.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailrace.errors import DivergedError, PositionLostError
from tailrace.jetstream.claim import Claim, claims

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.client.replica import State


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """The identity of a stream, from JetStream's description of it."""

    info: Mapping[str, Any]

    @property
    def created(self) -> str:
        """When the stream was created."""
        return str(self.info["created"])

    def history(self, pipeline: str) -> str:
        """The history that a pipeline delivers; empty if it has not delivered yet."""
        return self._claim(pipeline).history

    def earlier(self, pipeline: str) -> int:
        """The last message that may be of an earlier history of a pipeline; 0 if none is left.

        After a restore, LSNs and transaction ids are used again: a copy that took such a message
        for one of its own history would have changes that the source no longer has.
        """
        after = self._claim(pipeline).after
        return after if after >= int(self.info["state"]["first_seq"]) else 0

    def _claim(self, pipeline: str) -> Claim:
        return claims(self.info).get(pipeline, Claim())

    def check(self, state: State) -> None:
        """Raise if a copy with this state cannot continue with the stream."""
        name = self.info["config"]["name"]
        if self.created != state.stream:
            raise PositionLostError(
                f"stream {name} was created again after the snapshot",
                hint="Start again without a state: the client requests a new snapshot.",
            )
        claim = claims(self.info).get(state.pipeline)
        if claim is None or claim.history == state.history:
            return
        # A copy without a history began before the pipeline's first claim.
        if state.history or claim.since_s:
            raise DivergedError(
                f"stream {name} now has the changes of another history: pipeline {state.pipeline} "
                f"delivers {claim.history}, and the copy of {state.table} was made from "
                f"{state.history or 'an earlier one'}",
                hint="The database was restored, or the pipeline was reset. Take a new snapshot: "
                "tailrace mirror --fresh, or start without a state.",
            )
