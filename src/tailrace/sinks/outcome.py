"""What became of a message that a sink did not accept. Accepted messages have no outcome."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.errors import TailraceError


class Verdict(enum.Enum):
    """Whether the message may be accepted later."""

    REFUSED = "refused"
    """Never as it is."""
    RETRY = "retry"
    """Perhaps: the destination failed, or did not answer in time."""
    THROTTLED = "throttled"
    """The destination asks for fewer messages. This says nothing about the message."""
    UNSENT = "unsent"
    """It was not sent, because an earlier message of its key was not accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Why a sink did not accept a message. Messages of one request may share it."""

    verdict: Verdict
    code: str
    """The code of the error: POISONED, SINK_REFUSED, or that of the destination: HTTP_503."""
    reason: str
    """A clause about the message: `it has 2000 bytes, the limit is 1000`."""
    hint: str = ""
    response: str = ""
    """The beginning of what the destination answered."""
    attempts: int = 1
    """How often the message was sent, or was found to be invalid."""
    retry_after_s: float | None = None
    """When the destination wants the next attempt; None if it does not say."""
    in_part: bool = False
    """Whether only a part of the destination asks for fewer messages, such as a shard."""

    @classmethod
    def refused(cls, error: TailraceError) -> Self:
        """The outcome of a message that fails with this error whenever it is sent."""
        return cls(verdict=Verdict.REFUSED, code=error.code, reason=str(error), hint=error.hint)


class Failure(NamedTuple):
    """A message that was not accepted: one row of MESSAGES, and why."""

    message: pa.RecordBatch
    outcome: Outcome
