"""The token of requests that change something: from the settings, or from a file.

Without `http.token` in the settings, the server creates a random token in the file `http.token` of
the data folder, for its owner only. Users who can read that file can also read the log and control
backfills by commands, so it gives no one more than they have. A token stays valid over restarts.
"""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING

from tailrace.log.store import LocalStore

if TYPE_CHECKING:
    from tailrace.config import Config

FILE = "http.token"
_SCHEME = "bearer"
_MIN_CHARACTERS = 16
_OTHERS = 0o077
"""The permissions of the group and of all others."""


def token_of(config: Config) -> str:
    """The token of the settings, or that of the file, which is created if it is missing."""
    return config.http.token.get_secret_value() or _stored(config) or _create(config)


def _stored(config: Config) -> str:
    """The token of the file; empty if there is none, or if other users may have read it."""
    path = config.data / FILE
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return ""
    return text if len(text) >= _MIN_CHARACTERS and not mode & _OTHERS else ""


def _create(config: Config) -> str:
    token = secrets.token_urlsafe(32)
    LocalStore(config.data, create=True).write_atomic(FILE, f"{token}\n".encode())
    return token


def is_authorised(authorization: str, token: str) -> bool:
    """Whether the header `Authorization` carries the token.

    >>> is_authorised("Bearer 0123456789abcdef", "0123456789abcdef")
    True
    """
    scheme, _, value = authorization.partition(" ")
    # In constant time: the duration of the comparison must not tell how much of a guess is right.
    return scheme.lower() == _SCHEME and hmac.compare_digest(value.strip().encode(), token.encode())
