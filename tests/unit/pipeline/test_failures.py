"""Errors of Spark queries, translated into Tailrace errors."""

from __future__ import annotations

import pytest

from tailrace.errors import (
    PoisonedError,
    SinkUnreachableError,
    TailraceError,
    UnexpectedError,
)
from tailrace.pipeline.failures import translate_error

TRACEBACK = """Job aborted due to stage failure: Traceback (most recent call last):
  File "worker.py", line 1, in main
tailrace.errors.SinkRefusedError: stream CDC: wrong password

During handling of the above exception, another exception occurred:

tailrace.errors.SinkUnreachableError: Kafka at db:9092: no answer
\tat org.apache.spark.api.python.BasePythonRunner
"""
RAISED = (
    "[USER_RAISED_EXCEPTION] public.t.doc is unchanged and PostgreSQL did not send it "
    "(event 00000000016b3748-3) SQLSTATE: P0001"
)


def test_a_tailrace_error_stays_itself() -> None:
    error = PoisonedError("message x")
    assert translate_error(error) is error


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (TRACEBACK, SinkUnreachableError, "Kafka at db:9092: no answer"),
        (
            RAISED,
            PoisonedError,
            "public.t.doc is unchanged and PostgreSQL did not send it (event 00000000016b3748-3)",
        ),
        ("\n  Broken pipe\n=== Plan ===", UnexpectedError, "the query ended: Broken pipe"),
        ("", UnexpectedError, "the query ended"),
        ("tailrace.errors.NoSuchError: x", UnexpectedError, None),
    ],
)
def test_sparks_report_is_translated(
    text: str, kind: type[TailraceError], message: str | None
) -> None:
    error = translate_error(RuntimeError(text))
    assert type(error) is kind
    assert message is None or str(error) == message


def test_a_query_without_an_error_has_ended() -> None:
    assert str(translate_error(None)) == "the query ended"
