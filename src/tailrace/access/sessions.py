"""Sessions of browsers, in memory: a restart of the HTTP process ends them.

The cookie is random. The table has only its hash, so that a dump of the process does not contain a
cookie that works.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.access.identity import Identity

LIFETIME_S = 12 * 3600.0
_MAX = 1000


@dataclass(slots=True)
class _Session:
    identity: Identity
    ends_at: float
    note: str = ""


class Sessions:
    """The sessions of this process."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[bytes, _Session] = {}
        self._lock = threading.Lock()

    def create(self, identity: Identity) -> str:
        """Begin a session; its cookie. A login never continues a session that was there before."""
        cookie = secrets.token_urlsafe(32)
        identity = replace(identity, csrf=secrets.token_urlsafe(24))
        with self._lock:
            self._expire()
            self._sessions[_key(cookie)] = _Session(identity, self._clock() + LIFETIME_S)
        return cookie

    def identity(self, cookie: str) -> Identity | None:
        """Whose session it is; None if it has ended or never was."""
        found = self._sessions.get(_key(cookie))
        return found.identity if found is not None and self._clock() < found.ends_at else None

    def leave_note(self, cookie: str, text: str) -> None:
        """Keep a text for the next page of a session. Not in its address: a link of another site
        could then have the page say anything."""
        if (found := self._sessions.get(_key(cookie))) is not None:
            found.note = text

    def take_note(self, cookie: str) -> str:
        """The text for the next page, once."""
        found = self._sessions.get(_key(cookie))
        if found is None:
            return ""
        text, found.note = found.note, ""
        return text

    def end(self, cookie: str) -> None:
        """End a session."""
        with self._lock:
            self._sessions.pop(_key(cookie), None)

    def _expire(self) -> None:
        now = self._clock()
        for key in [key for key, each in self._sessions.items() if each.ends_at <= now]:
            del self._sessions[key]
        while len(self._sessions) >= _MAX:
            del self._sessions[next(iter(self._sessions))]


def _key(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("utf-8", "surrogatepass")).digest()
