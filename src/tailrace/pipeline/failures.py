"""Errors of Spark queries, translated into Tailrace errors."""

from __future__ import annotations

import re

from py4j.protocol import Py4JJavaError

from tailrace import errors
from tailrace.errors import DiskFullError, TailraceError, UnexpectedError
from tailrace.pipeline.expressions import analysis

_RAISED = re.compile(r"tailrace\.errors\.(\w+): (.*)")
_NO_SPACE = re.compile(r"[\w.$]+: No space left on device")


def translate_error(error: Exception | None) -> TailraceError:
    """The Tailrace error in Spark's report of a failed task; `UnexpectedError` without one."""
    if isinstance(error, TailraceError):
        return error
    text = str(error.java_exception if isinstance(error, Py4JJavaError) else error or "")
    stopped = analysis.raised_error(text)
    if stopped is not None:
        return stopped
    # The report holds the Python traceback as text: the last error in it is the one that was
    # raised.
    raised = _RAISED.findall(text)
    kind = getattr(errors, raised[-1][0], None) if raised else None
    if isinstance(kind, type) and issubclass(kind, TailraceError):
        return kind(raised[-1][1])
    full = _NO_SPACE.search(text)
    if full is not None:
        # Spark could not write the checkpoint, or a temporary file.
        return DiskFullError(f"Spark cannot write: {full[0]}")
    return analysis.data_error(text) or UnexpectedError(_cause(text))


def _cause(text: str) -> str:
    """Why a query ended: the first line of Spark's message, without the plan that follows.

    >>> _cause("Broken pipe\\n=== Streaming Query ===\\n+- ~StreamingDataSourceV2Relation")
    'the query ended: Broken pipe'
    """
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return f"the query ended: {first}" if first else "the query ended"
