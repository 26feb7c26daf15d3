"""What every sink promises. The columns it gets are `tailrace.message.MESSAGES`.

A sink runs inside a Spark task. `open` comes first, with the position up to which the checkpoint
knows everything to be delivered; a sink that can read back what it holds skips what an interrupted
attempt has already stored. `write` may return before anything is durable; `flush` returns a
`Receipt` once everything written is durable, or says in `Receipt.upto` what is. After an error
nothing since the last `flush` counts: the same messages are delivered again, with the same ids.

Positions increase with every message that a lane writes, from batch to batch.

A message that can never be delivered has an `Outcome`, found by `inspect` before anything is sent:
a client that sends many messages at a time cannot take back those that follow a refused one. Errors
are for what concerns the connection, the login, the server or a whole destination.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tailrace.position import ORIGIN, Position
from tailrace.sinks.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pyarrow as pa

    from tailrace.sinks.outcome import Failure, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A destination that refuses messages, while the sink delivers to its others."""

    destination: str
    code: str
    """The code of the error."""
    reason: str
    hint: str = ""
    since_s: float = 0.0
    """When it was first refused, in seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What became durable since the last receipt."""

    messages: int = 0
    bytes: int = 0
    """Payload bytes."""
    duplicates: int = 0
    """Messages the sink already had: skipped by Tailrace or refused by the sink."""
    failures: tuple[Failure, ...] = ()
    """Messages that were not accepted, in order of position. All others are durable. After such a
    message the sink has sent no other of its group (`tailrace.sinks.groups`) if the lane `blocks`,
    unless it promises no order of messages.
    A sink that is `all_or_nothing` has stored nothing: the caller writes again what is left."""
    failed: int = 0
    """Attempts that failed, of messages that were sent again. The guard adds `failures`."""
    parked: int = 0
    """Messages that were parked instead of delivered (`tailrace.pipeline.guard`)."""
    upto: Position | None = None
    """Up to where everything is decided: durable, or among the failures. None: all of it."""
    refusals: tuple[Refusal, ...] = ()
    """Destinations that are refused at present. Only a sink that delivers their messages later, by
    itself, may report some; every other sink raises an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """What a sink is opened for: one lane of one run of a pipeline."""

    pipeline: str
    slot: str = ""
    """The replication slot of the log. Two bridges have pipelines of the same name."""
    number: int = 0
    lanes: int = 1
    """How many lanes the pipeline has."""
    database: str = ""
    history: str = ""
    """The history that the positions belong to: the id of the log, and after a reset also its id,
    `ID+RESET`. In another history the same position means another change."""
    began: Position = ORIGIN
    """Where the pipeline began: it has delivered nothing up to there."""
    routed: bool = False
    """Whether an expression chooses destinations, so that any may occur."""
    folder: Path | None = None
    """Where the sink may keep what it knows of this pipeline, if there is such a place."""
    retry: Retry = field(default_factory=Retry)
    """How often a message is sent again."""
    ordered: bool = True
    """Whether the messages of a key must stay in order."""
    blocks: bool = True
    """Whether nothing of a key may be sent after a message of it that was not accepted."""

    @property
    def owner(self) -> str:
        """The name of the pipeline among those of other processes.

        >>> Lane(pipeline="bridge", slot="cdc_slot").owner, Lane(pipeline="bridge").owner
        ('cdc_slot.bridge', 'bridge')
        """
        return f"{self.slot}.{self.pipeline}" if self.slot else self.pipeline

    @property
    def reset(self) -> bool:
        """Whether the pipeline was reset: its user has given up the positions of earlier
        histories."""
        return "+" in self.history


class Sink(Protocol):
    """A destination for messages, used by one task at a time."""

    def open(self, after: Position) -> None:
        """Connect. Everything up to `after` is already delivered."""

    def inspect(self, batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        """The rows of a batch of MESSAGES that can never be delivered, and why. Sends nothing."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take a batch of MESSAGES without such rows. Waits when too many are in flight."""

    def flush(self, *, end: bool = True) -> Receipt:
        """Wait until everything written is durable.

        Without `end` the batch goes on: a sink may leave messages undecided for which it would have
        to wait, and reports them in a later receipt.
        """

    def close(self) -> None:
        """Release everything at once. What is not flushed does not count as delivered."""
