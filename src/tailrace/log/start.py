"""Where to begin in a log, as people write it."""

from __future__ import annotations

from datetime import UTC, datetime

from tailrace.errors import ConfigError
from tailrace.log.reader import AtLsn, AtTime, Earliest, Latest, Start
from tailrace.position import Lsn
from tailrace.wire.pgtime import PgTime

FORMS = "earliest, latest, an LSN such as 16/B374D848, or a time such as 2026-01-31T12:00:00Z"


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
            f"{text!r} is no place in a log", hint=f"Write {FORMS} (UTC unless it says so)."
        ) from error


def _micros(text: str) -> int:
    when = datetime.fromisoformat(text)
    return PgTime.of(when if when.tzinfo else when.replace(tzinfo=UTC))
