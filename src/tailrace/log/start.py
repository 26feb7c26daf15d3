"""Where to start reading a log: the four forms, and how users write them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from tailrace.errors import ConfigError
from tailrace.position import Lsn
from tailrace.wire.pgtime import PgTime

FORMS = "earliest, latest, an LSN such as 16/B374D848, or a time such as 2026-01-31T12:00:00Z"


@dataclass(frozen=True, slots=True)
class Earliest:
    """From the first change that the log still holds."""


@dataclass(frozen=True, slots=True)
class Latest:
    """From the present end of the log on."""


@dataclass(frozen=True, slots=True)
class AtLsn:
    """From the first transaction whose commit LSN is at or after `lsn`."""

    lsn: Lsn


@dataclass(frozen=True, slots=True)
class AtTime:
    """From the first transaction committed at or after `micros` since 2000-01-01 UTC."""

    micros: int


Start = Earliest | Latest | AtLsn | AtTime


def parse_start(text: str) -> Start:
    """Read one of `FORMS`. A time without a zone is in UTC, like all times of the log.

    >>> parse_start("16/B374D848")
    AtLsn(lsn=Lsn('16/B374D848'))
    """
    match text.strip().lower():
        case "earliest":
            return Earliest()
        case "latest":
            return Latest()
    try:
        return AtLsn(Lsn.parse(text.strip())) if "/" in text else AtTime(_micros(text.strip()))
    except ValueError as error:
        raise ConfigError(
            f"invalid start position {text!r}",
            hint=f"Write {FORMS}. Times are in UTC unless they have a zone.",
        ) from error


def _micros(text: str) -> int:
    when = datetime.fromisoformat(text)
    return PgTime.of(when if when.tzinfo else when.replace(tzinfo=UTC))
