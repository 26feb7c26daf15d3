"""PostgreSQL's errors as Tailrace's: about a message, the connection, or the database.

| SQLSTATE                                            | means                            |
|-----------------------------------------------------|----------------------------------|
| 22 data, 23 constraint, 44 check option, 54 limit,  | the message is refused           |
| P0001 raised by a trigger                           |                                  |
| 08, 40, 53, 57, 25P03, 55P03, 25006 standby, none   | unreachable: passes by itself    |
| 53100 disk full                                     | full: passes once there is space |
| all others                                          | refused: a person must act       |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import (
    PoisonedError,
    PostgresUnreachableError,
    SinkError,
    SinkFullError,
    SinkRefusedError,
    SinkUnreachableError,
    SlotBusyError,
    TailraceError,
)
from tailrace.postgres.connection import redact, translate
from tailrace.sinks.outcome import Outcome, Verdict

if TYPE_CHECKING:
    import psycopg

_OF_A_MESSAGE = ("22", "23", "44", "54", "P0001")
_NOT_OF_A_MESSAGE = ("22P04",)
"""Bad COPY data: the table has other types than the sink writes."""
_CHECK = "23514"
_DISK_FULL = "53100"
_STANDBY = "25006"
_TIMEOUT = "57014"
_EXCERPT = 2000
_HINTS = (
    (_DISK_FULL, "Free space on the target server. Nothing is lost."),
    (_STANDBY, "Is the target a standby? Add target_session_attrs=read-write to `dsn`."),
    (_TIMEOUT, "Raise statement_timeout_s of the sink, or find out what blocks the statement."),
    ("42501", "Grant the role the permissions that docs/guides/postgres.md lists."),
    ("42P01", "Create the table in the target database."),
    ("3F000", "Create the schema in the target database."),
    (_CHECK, "A dropped partition is created again at the next attempt, if the sink manages them."),
    ("22P04", "Compare the types of the table's columns with docs/guides/postgres.md."),
)


class RefusedMessageError(Exception):
    """The sink itself finds that a message cannot be stored. Never leaves the sink."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.outcome = refused(reason, hint)


def refused(reason: str, hint: str = "", *, response: str = "") -> Outcome:
    """The outcome of a message that the target will never accept."""
    return Outcome(
        verdict=Verdict.REFUSED,
        code=PoisonedError.code,
        reason=reason,
        hint=hint,
        response=response[:_EXCERPT],
    )


def outcome_of(error: psycopg.Error, *, dsn: str) -> Outcome | None:
    """Why PostgreSQL refuses a message; None if the error is not about a message.

    The detail quotes values of the row, so it is not part of the reason, which is logged.
    """
    state, diagnosis = error.sqlstate or "", error.diag
    if not state.startswith(_OF_A_MESSAGE) or state in _NOT_OF_A_MESSAGE:
        return None
    if state == _CHECK and not diagnosis.constraint_name:
        return None  # there is no partition for the row: retention dropped it
    text = redact(" ".join((diagnosis.message_primary or str(error)).split()), dsn)
    table = f" (table {diagnosis.table_name})" if diagnosis.table_name else ""
    return refused(
        f"PostgreSQL refuses it: {text}{table}",
        "Correct the target's table, or filter the message out.",
        response=redact(diagnosis.message_detail or "", dsn),
    )


def translate_error(error: psycopg.Error, *, dsn: str) -> SinkError:
    """The error of Tailrace for an error that is not about a message."""
    found = translate(error, dsn=dsn)
    state = error.sqlstate or ""
    hint = next((hint for prefix, hint in _HINTS if state.startswith(prefix)), "")
    return _kind(found, state)(f"target database: {found}", hint=hint or _of_the_sink(found))


def _kind(found: TailraceError, state: str) -> type[SinkError]:
    if state == _DISK_FULL:
        return SinkFullError
    if isinstance(found, (PostgresUnreachableError, SlotBusyError)) or state in (_STANDBY, _CHECK):
        return SinkUnreachableError
    return SinkRefusedError


def _of_the_sink(found: TailraceError) -> str:
    """The hint, if it is not a general one about the source."""
    if found.hint == found.default_hint:
        return ""
    return found.hint.replace("source.dsn", "`dsn` of the sink")
