"""Parked messages as columns: a message, its first position, and why it was not accepted."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.message import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.sinks.outcome import Outcome

RELEASED = pa.schema(
    [
        *MESSAGES,
        pa.field("first_lsn", pa.uint64(), nullable=False),
        pa.field("first_ordinal", pa.uint64(), nullable=False),
        pa.field("attempts", pa.int32(), nullable=False),
    ]
)
"""Messages that are delivered again. `lsn` and `ordinal` are where this happens, `first_lsn` and
`first_ordinal` where they were first to be delivered; these identify a parked message."""

PARKED = pa.schema(
    [
        *RELEASED,
        pa.field("fate", pa.uint8(), nullable=False),
        pa.field("code", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("hint", pa.string(), nullable=False),
        pa.field("response", pa.string(), nullable=False),
        pa.field("at_us", pa.int64(), nullable=False),
    ]
)
"""What became of messages that were not accepted, or that were released."""


class Fate(enum.IntEnum):
    """What became of a message."""

    PARKED = 0
    """Its sink did not accept it."""
    HELD = 1
    """It was not sent, because an earlier message of its group is parked."""
    DELIVERED = 2
    """It was released, and accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a message is parked."""

    code: str = ""
    reason: str = ""
    hint: str = ""
    response: str = ""
    attempts: int = 0

    @classmethod
    def of(cls, outcome: Outcome) -> Reason:
        """From what the sink reported."""
        return cls(
            code=outcome.code,
            reason=outcome.reason,
            hint=outcome.hint,
            response=outcome.response,
            attempts=outcome.attempts,
        )


def first_seen(messages: pa.RecordBatch) -> pa.RecordBatch:
    """MESSAGES as RELEASED: their position is their first one."""
    if messages.schema.names == RELEASED.names:
        return messages
    columns = [
        *messages.columns,
        messages["lsn"],
        messages["ordinal"],
        pa.repeat(pa.scalar(0, pa.int32()), messages.num_rows),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RELEASED)


def with_fate(
    messages: pa.RecordBatch, fate: Fate, reasons: Sequence[Reason], *, at_us: int
) -> pa.RecordBatch:
    """MESSAGES or RELEASED as PARKED. One reason applies to all messages."""
    rows = first_seen(messages)
    every = list(reasons) if len(reasons) != 1 else list(reasons) * rows.num_rows
    attempts = pa.array([each.attempts for each in every], pa.int32())
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns |= {
        "attempts": pc.add(columns["attempts"], attempts),
        "fate": pa.repeat(pa.scalar(int(fate), pa.uint8()), rows.num_rows),
        **{
            name: pa.array([getattr(each, name) for each in every], pa.string())
            for name in ("code", "reason", "hint", "response")
        },
        "at_us": pa.repeat(pa.scalar(at_us, pa.int64()), rows.num_rows),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in PARKED.names], schema=PARKED)
