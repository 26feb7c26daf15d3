"""The contract of sinks for records of the broker's topics.

A record is not a message: it has a topic, a partition and an offset of its own. The columns are
`tailrace.encode.records.RECORDS`, so these sinks are not `tailrace.sinks.contract.Sink`s. The
contract suite is `tests/contract/test_record_sinks.py`.

What a sink takes
    Batches of RECORDS. Within a partition, offsets increase; partitions may be mixed. A row whose
    topic is null is a copy request (`kafka.shadow_sweep`): its value is a JSON array of
    `[topic id, partition, end]`, and the sink copies the records before `end` from the table.

What durable means
    `write` may return before anything is durable. `flush` returns when every record that was
    written is committed in the destination, together with the progress of its partition, and
    reports them in a `Receipt`. Consumers of committed records never see a part of a flush.

Replay
    After a crash the same records are written again, from any earlier offset. A sink copies each
    record exactly once: it reads the progress back in `open`, skips records before it and counts
    them as duplicates. If offsets are missing before a record, it reads them from the table first.
    Only records that the table no longer has are left out. `open` gets the position of the
    checkpoint like every sink, but offsets decide, not positions.

Fencing
    At most one sink of a pipeline writes. A sink that opens takes over: an earlier one cannot
    commit any more. Its `flush` raises an error and nothing of its open transaction is visible. An
    earlier one that opens again reads the progress back first.

Errors
    After any error nothing since the last `flush` is durable, and the sink is closed. A failure
    that passes by itself is a transient `SinkError`. A source whose records differ from those that
    were copied is refused with `SinkRefusedError`.

Refusals
    A topic that the destination refuses (other records in it, a missing right, a record that is too
    large) does not stop the others: `flush` commits theirs and names it in the receipt. Its
    progress stays; the sink copies what is missing when the destination accepts it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from tailrace.position import Position
    from tailrace.sinks.contract import Receipt
    from tailrace.sinks.outcome import Outcome


class RecordSink(Protocol):
    """A destination for records. Used by one task at a time."""

    def open(self, after: Position) -> None:
        """Connect, fence earlier sinks of this pipeline, and read the progress back."""

    def inspect(self, batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        """No row: a topic is refused, not a record of it."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take a batch of RECORDS; may wait while too much is in flight."""

    def flush(self, *, end: bool = True) -> Receipt:
        """Commit everything written since the last flush, with the progress."""

    def close(self) -> None:
        """Disconnect at once. Records that are not flushed are discarded."""
