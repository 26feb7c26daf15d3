"""Failpoints: named places where a test kills the process or makes the disk fail.

`TAILRACE_FAILPOINTS="log.before-sync=kill@3,store.create=enospc"` kills the process before its
third sync and fails the first creation of a file. Without the variable a failpoint costs one lookup
in an empty dictionary. `docs/reference/failpoints.md` lists the names.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import dataclass

_ACTIONS = ("kill", "enospc", "eio", "sleep")


@dataclass(slots=True)
class _Armed:
    action: str
    at: int
    seen: int = 0


def _parse(text: str) -> dict[str, _Armed]:
    armed = {}
    for part in filter(None, text.split(",")):
        name, _, what = part.partition("=")
        action, _, at = what.partition("@")
        if action not in _ACTIONS:
            raise ValueError(
                f"failpoint {name}: action must be one of {', '.join(_ACTIONS)}, got {action!r}"
            )
        armed[name] = _Armed(action, int(at or 1))
    return armed


_armed = _parse(os.environ.get("TAILRACE_FAILPOINTS", ""))


def configure(text: str) -> None:
    """Set the failpoints of this process; an empty text removes all."""
    _armed.clear()
    _armed.update(_parse(text))


def armed(name: str) -> bool:
    """Whether the next `hit(name)` acts; for code that prepares the damage itself."""
    point = _armed.get(name)
    if point is None or point.seen + 1 != point.at:
        if point is not None:
            point.seen += 1
        return False
    return True


def hit(name: str) -> None:
    """Reach a failpoint: act if it is armed and its count is reached."""
    if not _armed:
        return
    point = _armed.get(name)
    if point is None:
        return
    point.seen += 1
    if point.seen == point.at:
        _act(point.action)


def _act(action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "sleep":
        time.sleep(3600)
    code = errno.ENOSPC if action == "enospc" else errno.EIO
    raise OSError(code, os.strerror(code))
