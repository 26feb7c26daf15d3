"""Every error Tailrace raises, as one tree.

    TailraceError                    code              exit  retry
    ├── ConfigError                  BAD_CONFIG           2  never
    ├── MalformedError               MALFORMED            3  never
    ├── PostgresError
    │   ├── UnreachableError         UNREACHABLE         20  back-off
    │   ├── SlotBusyError            SLOT_BUSY           21  back-off
    │   └── RefusedError             REFUSED             22  never
    ├── GapError                     GAP                 10  never
    ├── SlotLostError                SLOT_LOST           11  never
    ├── DivergedError                DIVERGED            12  never
    ├── ExpressionError              BAD_EXPRESSION       4  never
    ├── SchemaChangedError           SCHEMA_CHANGED       5  never
    ├── ReplanError                  REPLAN               6  back-off
    ├── SinkError
    │   ├── SinkUnreachableError     SINK_UNREACHABLE    30  back-off
    │   ├── SinkFullError            SINK_FULL           31  back-off
    │   ├── SinkRefusedError         SINK_REFUSED        32  never
    │   └── PoisonedError            POISONED            33  never
    └── LogError
        ├── DiskFullError            DISK_FULL           13  never
        ├── CorruptError             CORRUPT             14  never
        ├── FencedError              FENCED              15  never
        ├── PositionLostError        POSITION_LOST       16  never
        └── StorageError             STORAGE             17  never

`code` is stable and is what logs, metrics and scripts see. `exit_code` is the process's. `retry`
says whether trying again can help by itself. `hint` tells an operator what to do next. Errors
survive pickling, because they cross process borders.
"""

from __future__ import annotations

import enum
from typing import Any, ClassVar


class Retry(enum.Enum):
    """Whether the same call may be tried again."""

    NEVER = "never"
    BACK_OFF = "back-off"


class TailraceError(Exception):
    """Base of the tree. `str(error)` is the finding, `error.hint` the way out."""

    code: ClassVar[str] = "ERROR"
    exit_code: ClassVar[int] = 1
    retry: ClassVar[Retry] = Retry.NEVER
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint or self.default_hint

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), str(self), self.hint)


def _restore(kind: type[TailraceError], message: str, hint: str) -> TailraceError:
    return kind(message, hint=hint)


class ConfigError(TailraceError):
    """A setting is unknown, missing or contradicts another."""

    code = "BAD_CONFIG"
    exit_code = 2


class MalformedError(TailraceError):
    """Bytes that do not follow their format. The only error of `tailrace.wire`."""

    code = "MALFORMED"
    exit_code = 3


class PostgresError(TailraceError):
    """PostgreSQL could not be reached or said no."""


class UnreachableError(PostgresError):
    """No answer, a cut connection, or a server that is starting or stopping."""

    code = "UNREACHABLE"
    exit_code = 20
    retry = Retry.BACK_OFF
    default_hint = "Check host, port and pg_hba.conf, then run: tailrace doctor"


class SlotBusyError(PostgresError):
    """Another connection is reading the slot."""

    code = "SLOT_BUSY"
    exit_code = 21
    retry = Retry.BACK_OFF
    default_hint = "Stop the other reader; pg_replication_slots.active_pid names it."


class RefusedError(PostgresError):
    """PostgreSQL refuses, and will until somebody changes something."""

    code = "REFUSED"
    exit_code = 22
    default_hint = "Run: tailrace doctor"


class GapError(TailraceError):
    """The slot is ahead of the log: changes between the two can no longer be read."""

    code = "GAP"
    exit_code = 10
    default_hint = (
        "Move the log folder away, run `tailrace init` for a new slot, and take a new snapshot. "
        "Going on would lose changes silently."
    )


class SlotLostError(TailraceError):
    """The slot is gone or PostgreSQL has invalidated it."""

    code = "SLOT_LOST"
    exit_code = 11
    default_hint = (
        "Move the log folder away, run `tailrace init` for a new slot, and take a new snapshot. "
        "Raise max_slot_wal_keep_size so that it does not happen again."
    )


class DivergedError(TailraceError):
    """The log and the server tell different histories."""

    code = "DIVERGED"
    exit_code = 12
    default_hint = (
        "The log belongs to another database, or the server lost changes the log holds "
        "(restore from backup, failover). Use a fresh log folder and take a new snapshot."
    )


class ExpressionError(TailraceError):
    """An SQL expression of a pipeline cannot be used, or no longer fits its table."""

    code = "BAD_EXPRESSION"
    exit_code = 4
    default_hint = "Correct the expression, then run: tailrace check"


class SchemaChangedError(TailraceError):
    """A table no longer has the columns a query was started with."""

    code = "SCHEMA_CHANGED"
    exit_code = 5
    default_hint = "Start the query again: it takes the table's columns as they are now."


class ReplanError(TailraceError):
    """A table has changed: the pipeline's plan is made again for it, by itself."""

    code = "REPLAN"
    exit_code = 6
    retry = Retry.BACK_OFF


class SinkError(TailraceError):
    """A sink could not be reached or said no."""


class SinkUnreachableError(SinkError):
    """No answer from the sink, or the line was cut."""

    code = "SINK_UNREACHABLE"
    exit_code = 30
    retry = Retry.BACK_OFF
    default_hint = "Check the sink's address and whether it runs. The log keeps every change."


class SinkFullError(SinkError):
    """The sink has no room for more messages."""

    code = "SINK_FULL"
    exit_code = 31
    retry = Retry.BACK_OFF
    default_hint = "Raise the stream's limits or let its consumers catch up. Nothing is lost."


class SinkRefusedError(SinkError):
    """The sink refuses, and will until somebody changes something."""

    code = "SINK_REFUSED"
    exit_code = 32
    default_hint = "Check credentials, permissions and the stream's settings."


class PoisonedError(SinkError):
    """A message that its sink can never take, or a change that cannot be encoded."""

    code = "POISONED"
    exit_code = 33
    default_hint = "The error names the message. Filter it out, or raise the sink's limits."


class LogError(TailraceError):
    """Something about the log on disk."""


class DiskFullError(LogError):
    """No space for the next entry. What is acknowledged is safe; PostgreSQL keeps the rest."""

    code = "DISK_FULL"
    exit_code = 13
    default_hint = "Free space, or lower log.keep_bytes, and start again: nothing is lost."


class CorruptError(LogError):
    """A checksum does not hold somewhere other than the torn end of the last segment."""

    code = "CORRUPT"
    exit_code = 14
    default_hint = (
        "Restore the segment from a replica or backup; `tailrace log verify` names the place. "
        "Nothing was changed on disk."
    )


class FencedError(LogError):
    """Another process holds the lease of this log, or has taken it over."""

    code = "FENCED"
    exit_code = 15
    default_hint = "One capture appends to a log at a time. Stop the other one first."


class PositionLostError(LogError):
    """A reader asks for changes that retention has already removed."""

    code = "POSITION_LOST"
    exit_code = 16
    default_hint = "Start from `earliest` and take a new snapshot of the tables concerned."


class StorageError(LogError):
    """The disk failed a read, a write or an fsync. A failed fsync is never tried again."""

    code = "STORAGE"
    exit_code = 17
    default_hint = "Check the disk and the kernel log, then start again: recovery is automatic."
