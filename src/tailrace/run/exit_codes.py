"""Exit codes of supervised processes: which of them a restart cannot fix, and their names."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tailrace.errors import Retry, TailraceError

if TYPE_CHECKING:
    from collections.abc import Iterator


def _final(kind: type[TailraceError]) -> Iterator[tuple[int, type[TailraceError]]]:
    for child in kind.__subclasses__():
        if "code" in vars(child) and child.retry is Retry.NEVER:
            yield child.exit_code, child
        yield from _final(child)


FINAL = dict(_final(TailraceError))
"""Exit codes that a restart cannot fix, with their errors. 1 is not final: any crash may have it.
"""


def exit_name(code: int) -> str:
    """An exit code with the name of its error or signal.

    >>> exit_name(10), exit_name(-9), exit_name(0)
    ('10 GAP', 'SIGKILL', '0')
    """
    if code in FINAL:
        return f"{code} {FINAL[code].code}"
    if code >= 0:
        return str(code)
    names = {signum.value: signum.name for signum in signal.Signals}
    return names.get(-code, f"signal {-code}")
