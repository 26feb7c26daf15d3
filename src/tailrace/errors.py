"""Every error Tailrace raises, as one tree.

    TailraceError                         code                 exit  retry
    ├── UnexpectedError                   UNEXPECTED              1  back-off
    ├── ConfigError                       BAD_CONFIG              2  never
    │   └── ParameterError                BAD_CONFIG              2  never
    ├── MalformedError                    MALFORMED               3  never
    ├── ExpressionError                   BAD_EXPRESSION          4  never
    ├── SchemaChangedError                SCHEMA_CHANGED          5  never
    ├── ReplanError                       REPLAN                  6  back-off
    ├── AlreadyRunningError               ALREADY_RUNNING         7  never
    ├── ProcessError                      PROCESS_FAILED          8  back-off
    ├── SnapshotLostError                 SNAPSHOT_LOST           9  back-off
    ├── GapError                          GAP                    10  never
    ├── SlotLostError                     SLOT_LOST              11  never
    ├── DivergedError                     DIVERGED               12  never
    ├── LogError
    │   ├── DiskFullError                 DISK_FULL              13  back-off
    │   ├── CorruptError                  CORRUPT                14  never
    │   ├── LogFencedError                FENCED                 15  never
    │   │   └── TakenOverError            FENCED                 15  never
    │   ├── PositionLostError             POSITION_LOST          16  never
    │   ├── StorageError                  STORAGE                17  never
    │   └── LogMissingError               LOG_MISSING            18  back-off
    ├── PostgresError
    │   ├── PostgresUnreachableError      UNREACHABLE            20  back-off
    │   ├── SlotBusyError                 SLOT_BUSY              21  back-off
    │   └── PostgresRefusedError          REFUSED                22  never
    ├── SinkError
    │   ├── SinkUnreachableError          SINK_UNREACHABLE       30  back-off
    │   ├── SinkFullError                 SINK_FULL              31  back-off
    │   ├── SinkRefusedError              SINK_REFUSED           32  never
    │   ├── PoisonedError                 POISONED               33  never
    │   └── SinkFencedError               SINK_FENCED            34  never
    ├── AlertUndeliveredError             ALERT_UNDELIVERED      19  back-off
    ├── ApiUnreachableError               API_UNREACHABLE        50  back-off
    ├── ApiRefusedError                   API_REFUSED            51  never
    └── ReplicaError
        ├── ReplicaUnreachableError       REPLICA_UNREACHABLE    40  back-off
        ├── ReplicaRefusedError           REPLICA_REFUSED        41  never
        ├── LeadingError                  LEADING                42  never
        └── ReplicaFailedError            REPLICA_FAILED         43  back-off

`code` is stable: logs, metrics and scripts see it. `exit_code` is that of the process. `retry` says
whether a retry can succeed without an operator: retry loops read nothing else. `hint` is the next
step for an operator. Errors survive pickling, because they cross process borders.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator


class Retry(enum.Enum):
    """Whether the same call may be retried."""

    NEVER = "never"
    BACK_OFF = "back-off"


class TailraceError(Exception):
    """Base of the tree, never raised itself. `str(error)` is what failed, `error.hint` the fix."""

    code: ClassVar[str] = "ERROR"
    exit_code: ClassVar[int] = 1
    retry: ClassVar[Retry] = Retry.NEVER
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint or self.default_hint

    @property
    def transient(self) -> bool:
        """Whether a retry can succeed by itself."""
        return self.retry is Retry.BACK_OFF

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), str(self), self.hint)


def _restore(kind: type[TailraceError], message: str, hint: str) -> TailraceError:
    return kind(message, hint=hint)


class UnexpectedError(TailraceError):
    """A bug, or an unknown error of a library. It is retried: it may not happen again."""

    code = "UNEXPECTED"
    exit_code = 1
    retry = Retry.BACK_OFF
    default_hint = "If it happens again, report it with the log lines around it."

    @classmethod
    def wrap(cls, error: BaseException) -> UnexpectedError:
        """The error of a library or a bug, with its type in the message."""
        return cls(f"{type(error).__name__}: {error}")


class ConfigError(TailraceError):
    """A setting is unknown, missing or contradicts another."""

    code = "BAD_CONFIG"
    exit_code = 2


class ParameterError(ConfigError):
    """A parameter of a request is invalid."""


class MalformedError(TailraceError):
    """Bytes that do not follow their format. The only error of `tailrace.wire`."""

    code = "MALFORMED"
    exit_code = 3


class ExpressionError(TailraceError):
    """An SQL expression of a pipeline is invalid, does not fit its table, or fails for a row."""

    code = "BAD_EXPRESSION"
    exit_code = 4
    default_hint = "Correct the expression, then run: tailrace check"


class SchemaChangedError(TailraceError):
    """A table no longer has the columns that a query was started with."""

    code = "SCHEMA_CHANGED"
    exit_code = 5
    default_hint = "Restart the query: it reads the table's present columns."


class ReplanError(TailraceError):
    """A table has changed: the pipeline restarts with a new plan by itself."""

    code = "REPLAN"
    exit_code = 6
    retry = Retry.BACK_OFF


class AlreadyRunningError(TailraceError):
    """Another process holds the lock of this data folder, broker or mirror."""

    code = "ALREADY_RUNNING"
    exit_code = 7
    default_hint = "Stop the other process first."


class ProcessError(TailraceError):
    """A process that this one depends on has ended or cannot be started."""

    code = "PROCESS_FAILED"
    exit_code = 8
    retry = Retry.BACK_OFF


class SnapshotLostError(TailraceError):
    """The exported snapshot is gone: its session ended, or it must be taken again."""

    code = "SNAPSHOT_LOST"
    exit_code = 9
    retry = Retry.BACK_OFF
    default_hint = "A new snapshot is taken by itself."


class GapError(TailraceError):
    """The slot is ahead of the log: changes between the two can no longer be read."""

    code = "GAP"
    exit_code = 10
    default_hint = (
        "Move the log folder away, run `tailrace init` for a new slot, and take a new snapshot. "
        "To continue would lose changes silently."
    )


class SlotLostError(TailraceError):
    """The slot is missing, or PostgreSQL has invalidated it."""

    code = "SLOT_LOST"
    exit_code = 11
    default_hint = (
        "Move the log folder away, run `tailrace init` for a new slot, and take a new snapshot. "
        "Raise max_slot_wal_keep_size to prevent it."
    )


class DivergedError(TailraceError):
    """A position belongs to another history of the database, or to another log."""

    code = "DIVERGED"
    exit_code = 12
    default_hint = (
        "After a restore, or with another database or log folder. For capture use a new log "
        "folder, for a pipeline: tailrace reset PIPELINE --from ... Then compare the sink with "
        "the source."
    )


class LogError(TailraceError):
    """The log on disk."""


class DiskFullError(LogError):
    """No space for the next entry. Acknowledged changes are safe; PostgreSQL keeps the rest."""

    code = "DISK_FULL"
    exit_code = 13
    retry = Retry.BACK_OFF
    default_hint = "Free space, or lower log.keep_bytes. Nothing is lost; `run` goes on by itself."


class CorruptError(LogError):
    """A checksum does not match, other than at the torn end of the last segment."""

    code = "CORRUPT"
    exit_code = 14
    default_hint = (
        "Restore the segment from a replica or backup; `tailrace log verify` names the place. "
        "Nothing was changed on disk."
    )


class LogFencedError(LogError):
    """Another process holds the lease of this log, or has taken it over."""

    code = "FENCED"
    exit_code = 15
    default_hint = "Only one capture may append to a log. Stop the other one first."


class TakenOverError(LogFencedError):
    """Another machine has taken over this log: PostgreSQL has a slot of a higher term."""

    default_hint = (
        "That machine captures now. To join it as a follower, run: tailrace follow. See "
        "docs/guides/takeover.md"
    )


class PositionLostError(LogError):
    """A reader asks for changes that retention has already removed."""

    code = "POSITION_LOST"
    exit_code = 16
    default_hint = "Start from `earliest` and take a new snapshot of the affected tables."


class StorageError(LogError):
    """The disk failed a read, a write or an fsync. A failed fsync is never retried."""

    code = "STORAGE"
    exit_code = 17
    default_hint = "Check the disk and the kernel log, then start again: recovery is automatic."


class LogMissingError(LogError):
    """There is no log yet where a reader expects one."""

    code = "LOG_MISSING"
    exit_code = 18
    retry = Retry.BACK_OFF
    default_hint = "Start capture on this log folder: tailrace capture"


class PostgresError(TailraceError):
    """PostgreSQL cannot be reached or refuses."""


class PostgresUnreachableError(PostgresError):
    """No answer, a lost connection, or a server that is starting or stopping."""

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


class PostgresRefusedError(PostgresError):
    """PostgreSQL refuses, and will until a setting, a privilege or an object is changed."""

    code = "REFUSED"
    exit_code = 22
    default_hint = "Run: tailrace doctor"


class SinkError(TailraceError):
    """A sink cannot be reached or refuses."""


class SinkUnreachableError(SinkError):
    """No answer from the sink, or the connection was lost."""

    code = "SINK_UNREACHABLE"
    exit_code = 30
    retry = Retry.BACK_OFF
    default_hint = "Check the sink's address and that it runs. The log keeps every change."


class SinkFullError(SinkError):
    """The sink has no space for more messages."""

    code = "SINK_FULL"
    exit_code = 31
    retry = Retry.BACK_OFF
    default_hint = "Raise the stream's limits or let its consumers catch up. Nothing is lost."


class SinkRefusedError(SinkError):
    """The sink refuses, and will until a setting or a permission is changed."""

    code = "SINK_REFUSED"
    exit_code = 32
    default_hint = "Check credentials, permissions and the stream's settings."


class PoisonedError(SinkError):
    """A message that its sink can never accept, or a change that cannot be encoded."""

    code = "POISONED"
    exit_code = 33
    default_hint = "The error names the message. Filter it out, or raise the sink's limits."


class SinkFencedError(SinkError):
    """Another run of this pipeline writes to the sink."""

    code = "SINK_FENCED"
    exit_code = 34
    default_hint = "Stop the other run of this pipeline, then start this one again."


class AlertUndeliveredError(TailraceError):
    """A channel for alerts does not accept a message. It is kept and sent again."""

    code = "ALERT_UNDELIVERED"
    exit_code = 19
    retry = Retry.BACK_OFF
    default_hint = "Correct the channel in `alerts.channels`, then run: tailrace alert test"


class ApiUnreachableError(TailraceError):
    """No answer, or no secure connection, to a command that asks a server (`--at`)."""

    code = "API_UNREACHABLE"
    exit_code = 50
    retry = Retry.BACK_OFF


class ApiRefusedError(TailraceError):
    """The server of `--at` accepts no such token or request."""

    code = "API_REFUSED"
    exit_code = 51


class ReplicaError(TailraceError):
    """A leader or a follower cannot be reached or refuses."""


class ReplicaUnreachableError(ReplicaError):
    """No connection between leader and follower, or a silent one."""

    code = "REPLICA_UNREACHABLE"
    exit_code = 40
    retry = Retry.BACK_OFF
    default_hint = "Check the address, and that the other side runs. The log keeps every change."


class ReplicaRefusedError(ReplicaError):
    """The other side does not take part: another key, version or log."""

    code = "REPLICA_REFUSED"
    exit_code = 41
    default_hint = "Compare `replication` in the settings of leader and follower."


class LeadingError(ReplicaError):
    """A follower ends because its machine has taken over, and leads now."""

    code = "LEADING"
    exit_code = 42
    default_hint = "`tailrace follow` starts `tailrace run` by itself, if it has a settings file."


class ReplicaFailedError(ReplicaError):
    """Something has failed on the other side's machine, such as its disk."""

    code = "REPLICA_FAILED"
    exit_code = 43
    retry = Retry.BACK_OFF
    default_hint = "See the log of the other machine. The connection is tried again."


def error_kinds() -> Iterator[type[TailraceError]]:
    """The classes with a code of their own."""
    kinds: list[type[TailraceError]] = [TailraceError]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
        if "code" in vars(kind) and kind is not TailraceError:
            yield kind


def error_of(code: str) -> type[TailraceError]:
    """The class of a code, such as one that another machine reports."""
    return next((kind for kind in error_kinds() if kind.code == code), UnexpectedError)
