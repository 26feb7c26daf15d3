"""Tokens of programs: shown once, stored as hashes in `tokens.json` of the data folder.

A token is random, so a plain hash suffices: there is nothing to guess. Its first part names it in
lists and in the audit file.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

import structlog

from tailrace import audit
from tailrace.access.identity import Identity, Level
from tailrace.errors import ConfigError, CorruptError, StorageError, TailraceError
from tailrace.state_file import StateFile

if TYPE_CHECKING:
    from pathlib import Path

Scope = Literal["read", "operate"]
_LEVELS: dict[Scope, Level] = {"read": Level.VIEWER, "operate": Level.OPERATOR}
_FILE = "tokens.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token, without its secret."""

    id: str
    scope: Scope
    digest: str
    created_at: datetime
    expires_at: datetime
    created_by: str = ""
    note: str = ""

    @property
    def expired(self) -> bool:
        """Whether it is no longer accepted."""
        return datetime.now(UTC) >= self.expires_at


class Tokens:
    """The tokens of a data folder."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._file = StateFile(data / _FILE, list[Token])
        self._read_at: tuple[int, int] | None = None
        self._tokens: list[Token] = []
        self.problem: TailraceError | None = None
        """Why `identity` knows no tokens at present: the file cannot be read."""

    def all(self) -> list[Token]:
        """The tokens, the oldest first. The file is read again when it has changed."""
        try:
            found = self._file.path.stat()
        except FileNotFoundError:
            self._read_at, self._tokens = None, []
            return []
        version = (found.st_mtime_ns, found.st_ino)
        if version != self._read_at:
            self._tokens, self._read_at = self._file.read() or [], version
        return self._tokens

    def create(self, scope: Scope, lifetime: timedelta, *, user: str, note: str = "") -> str:
        """Create a token; the text that is shown once."""
        name, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
        text = f"tailrace_{name}_{secret}"
        now = datetime.now(UTC)
        token = Token(
            id=name, scope=scope, digest=_digest(text), created_at=now, expires_at=now + lifetime,
            created_by=user, note=note,
        )  # fmt: skip
        with self._file.exclusive():
            kept = [each for each in self._file.read() or [] if not each.expired]
            audit.record(
                self._data, "token.create", user=user, token=name, scope=scope,
                expires_at=token.expires_at,
            )  # fmt: skip
            self._file.write([*kept, token])
        return text

    def revoke(self, name: str, *, user: str) -> None:
        """Remove a token."""
        with self._file.exclusive():
            tokens = self._file.read() or []
            if not any(each.id == name for each in tokens):
                known = ", ".join(each.id for each in tokens) or "none"
                raise ConfigError(f"there is no token {name!r}", hint=f"There are: {known}.")
            audit.record(self._data, "token.revoke", user=user, token=name)
            self._file.write([each for each in tokens if each.id != name])

    def identity(self, text: str) -> Identity | None:
        """Who sends this token; None if it is unknown or has expired."""
        digest = _digest(text)
        for token in self._readable():
            if hmac.compare_digest(token.digest, digest) and not token.expired:
                level = _LEVELS[token.scope]
                return Identity(name=f"token {token.id}", level=level, token=token.id)
        return None

    def accepts(self, name: str) -> bool:
        """Whether the token with this id has neither been revoked nor expired."""
        return any(each.id == name and not each.expired for each in self._readable())

    def _readable(self) -> list[Token]:
        """The tokens; none if the file is damaged or of another user. The requests of all others
        are answered meanwhile, and the overview shows the problem."""
        try:
            tokens = self.all()
        except OSError as error:
            problem: TailraceError = StorageError(
                f"cannot read {self._file.path}: {error.strerror or error}",
                hint="Give the file to the user of `tailrace run`.",
            )
        except CorruptError as error:
            problem = error
        else:
            self.problem = None
            return tokens
        if str(problem) != str(self.problem):
            structlog.get_logger().error("access.tokens_unreadable", error=str(problem))
        self.problem = problem
        return []


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
