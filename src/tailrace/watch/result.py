"""What a health check says."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tailrace.errors import Retry, error_kinds


class State(enum.StrEnum):
    """The state of a check. Only the second and the third lead to alerts."""

    HEALTHY = "healthy"
    WARNING = "warning"
    ERROR = "error"
    INITIALIZING = "initializing"
    PAUSED = "paused"

    @property
    def bad(self) -> bool:
        """Whether it leads to an alert."""
        return self in (State.WARNING, State.ERROR)


RANK = {"warning": 1, "error": 2}
"""How severe a bad state is, or an alert."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """A check, of one subject if there are several: a pipeline, a process, a disk."""

    check: str
    subject: str = ""

    def __str__(self) -> str:
        return f"{self.check} {self.subject}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a check found."""

    key: Key
    state: State
    summary: str
    hint: str = ""
    at_once: bool = False
    """A final state: an alert does not wait."""


def healthy(check: str, summary: str, subject: str = "") -> Result:
    """Everything is in order."""
    return Result(key=Key(check, subject), state=State.HEALTHY, summary=summary)


def warning(check: str, summary: str, hint: str = "", subject: str = "") -> Result:
    """It works, but not for long, or not for all."""
    return Result(key=Key(check, subject), state=State.WARNING, summary=summary, hint=hint)


def error(
    check: str, summary: str, hint: str = "", subject: str = "", *, at_once: bool = False
) -> Result:
    """It does not work."""
    return Result(
        key=Key(check, subject), state=State.ERROR, summary=summary, hint=hint, at_once=at_once
    )


def initializing(check: str, summary: str, subject: str = "") -> Result:
    """Nothing can be said yet."""
    return Result(key=Key(check, subject), state=State.INITIALIZING, summary=summary)


def paused(check: str, summary: str, subject: str = "") -> Result:
    """It does nothing, on request."""
    return Result(key=Key(check, subject), state=State.PAUSED, summary=summary)


_KINDS = {kind.code: kind for kind in error_kinds()}


def hint_of(code: str) -> str:
    """What to do about an error, by its code."""
    kind = _KINDS.get(code)
    return kind.default_hint if kind else ""


def final(code: str) -> bool:
    """Whether the error of this code needs an operator."""
    kind = _KINDS.get(code)
    return kind is not None and kind.retry is Retry.NEVER
