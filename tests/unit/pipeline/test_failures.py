"""Errors of Spark queries, translated into Tailrace errors."""

from __future__ import annotations

import pytest

from tailrace.errors import (
    DiskFullError,
    ExpressionError,
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
TASK = (
    "Job aborted due to stage failure: Lost task 0.0 in stage 1.0 (TID 1) (10.0.0.1 executor 2): "
)
CAST = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
    f"{TASK}org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value 'a\nb' of "
    'the type "STRING" cannot be cast to "BIGINT" because it is malformed. SQLSTATE: 22018\n'
    "== SQL ==\n\tat org.apache.spark.sql.errors SQLSTATE: XXKST"
)
OVERFLOW = f"{TASK}java.lang.ArithmeticException: long overflow\n\tat java.base/java.lang.Math"


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
        (
            CAST,
            ExpressionError,
            "an expression fails for a row: [CAST_INVALID_INPUT] The value 'a b' of the type "
            '"STRING" cannot be cast to "BIGINT" because it is malformed.',
        ),
        (
            OVERFLOW,
            ExpressionError,
            "an expression fails for a row: java.lang.ArithmeticException: long overflow",
        ),
        ("[INTERNAL_ERROR] x SQLSTATE: XX000", UnexpectedError, None),
        (
            f"{TASK}java.io.IOException: No space left on device",
            DiskFullError,
            "Spark cannot write: java.io.IOException: No space left on device",
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
