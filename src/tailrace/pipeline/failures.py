"""What Spark's accounts of failures mean in our own terms."""

from __future__ import annotations

import re

from py4j.protocol import Py4JJavaError

from tailrace import errors
from tailrace.errors import TailraceError, UnexpectedError
from tailrace.pipeline.expressions import analysis

_RAISED = re.compile(r"tailrace\.errors\.(\w+): (.*)")


def translate_error(error: Exception | None) -> TailraceError:
    """Our own error out of Spark's account of a failed task."""
    if isinstance(error, TailraceError):
        return error
    text = str(error.java_exception if isinstance(error, Py4JJavaError) else error or "")
    stopped = analysis.raised_error(text)
    if stopped is not None:
        return stopped
    raised = _RAISED.findall(text)
    kind = getattr(errors, raised[-1][0], None) if raised else None
    if isinstance(kind, type) and issubclass(kind, TailraceError):
        return kind(raised[-1][1])
    return UnexpectedError(_cause(text))


def _cause(text: str) -> str:
    """Why a query ended: what Spark says first. The plan that follows tells nobody anything.

    >>> _cause("Broken pipe\\n=== Streaming Query ===\\n+- ~StreamingDataSourceV2Relation")
    'the query ended: Broken pipe'
    """
    found = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return f"the query ended: {found}" if found else "the query ended"
