"""Exit codes of supervised processes: which of them a restart cannot fix, and their names."""

from __future__ import annotations

import signal

from tailrace.errors import Retry, error_kinds

ERRORS = {kind.exit_code: kind for kind in error_kinds() if kind.exit_code != 1}
"""The errors by their exit codes. 1 is none of them: any crash may have it."""
FINAL = {code: kind for code, kind in ERRORS.items() if kind.retry is Retry.NEVER}
"""The exit codes that a restart cannot fix."""


def exit_name(code: int) -> str:
    """An exit code with the name of its error or signal.

    >>> exit_name(10), exit_name(-9), exit_name(0)
    ('10 GAP', 'SIGKILL', '0')
    """
    if code in ERRORS:
        return f"{code} {ERRORS[code].code}"
    if code >= 0:
        return str(code)
    names = {signum.value: signum.name for signum in signal.Signals}
    return names.get(-code, f"signal {-code}")
