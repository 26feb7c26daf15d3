"""What PostgreSQL's errors mean, by their SQLSTATE."""

from __future__ import annotations

import psycopg
import pytest

from tailrace.errors import SinkError, SinkFullError, SinkRefusedError, SinkUnreachableError
from tailrace.sinks.outcome import Verdict
from tailrace.sinks.postgres.failures import outcome_of, translate_error

OF_A_MESSAGE = ("22P02", "22001", "22P05", "22021", "23505", "23502", "44000", "54000", "P0001")
UNREACHABLE = (
    *("08006", "57P01", "57P02", "57P03", "57014", "55P03", "25P03", "25006"),
    *("40001", "40P01", "53200", "53300"),
)
REFUSED = ("28P01", "28000", "3D000", "42501", "42P01", "3F000", "42703", "22P04", "0A000")


def error(state: str, text: str = "what went wrong") -> psycopg.Error:
    return psycopg.errors.lookup(state)(text)


@pytest.mark.parametrize("state", OF_A_MESSAGE)
def test_errors_of_a_message(state: str) -> None:
    outcome = outcome_of(error(state), dsn="")
    assert outcome is not None
    assert (outcome.verdict, outcome.code) == (Verdict.REFUSED, "POISONED")
    assert "what went wrong" in outcome.reason


@pytest.mark.parametrize(
    ("states", "kind"),
    [
        (UNREACHABLE, SinkUnreachableError),
        (REFUSED, SinkRefusedError),
        (("53100",), SinkFullError),
    ],
)
def test_errors_of_the_database(states: tuple[str, ...], kind: type[SinkError]) -> None:
    for state in states:
        assert outcome_of(error(state), dsn="") is None, state
        found = translate_error(error(state), dsn="")
        assert type(found) is kind, state
        assert "source.dsn" not in found.hint


def test_a_row_without_a_partition_is_not_the_fault_of_the_message() -> None:
    assert outcome_of(error("23514"), dsn="") is None


def test_a_lost_connection_has_no_state() -> None:
    lost = psycopg.OperationalError("server closed the connection unexpectedly")
    assert isinstance(translate_error(lost, dsn=""), SinkUnreachableError)


def test_passwords_are_not_shown() -> None:
    found = translate_error(error("28P01", "no: secret-word"), dsn="password=secret-word")
    assert "secret-word" not in str(found)
