"""Decides who sends a request: a session, a token, or an anonymous client.

| request has                       | without users       | with users          |
|-----------------------------------|---------------------|---------------------|
| a session's cookie                | operator            | the user's role     |
| the token of the endpoints        | operator            | operator            |
| a token of `tailrace token`       | by its scope        | by its scope        |
| nothing                           | states and figures  | login first         |

Without users a browser logs in with the token of the endpoints, which the owner of the data folder
can read.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from tailrace.access import password
from tailrace.access.attempts import Attempts
from tailrace.access.identity import PUBLIC, Identity, Level
from tailrace.access.sessions import Sessions
from tailrace.access.tokens import Tokens
from tailrace.errors import ConfigError
from tailrace.settings import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.config import Config, Http

HTTP_USER = "http"
"""The name of the owner of the endpoints' token, in the audit file."""
_SCHEME = "bearer"


class Access:
    """The users, sessions and tokens of the HTTP endpoints. `token` is that of the endpoints."""

    def __init__(self, config: Config, token: str) -> None:
        self._users = config.http.users
        self._token = token
        self.secure = config.http.tls is not None
        """Whether cookies are sent over TLS only."""
        # Browsers do not separate cookies by port: two systems of a host have one each. The prefix
        # keeps other hosts of the domain from setting it.
        self.cookie = f"{'__Host-' if self.secure else ''}tailrace_session_{config.http.port}"
        self.sessions = Sessions()
        self.attempts = Attempts()
        self.tokens = Tokens(config.data)

    @property
    def needs_login(self) -> bool:
        """Whether reading needs a login as well."""
        return bool(self._users)

    @property
    def has_users(self) -> bool:
        """Whether a login has a name."""
        return bool(self._users)

    def identify(self, headers: Mapping[str, str], cookies: Mapping[str, str]) -> Identity:
        """Who sends a request. A token that is invalid does not fall back to a cookie."""
        authorization = headers.get("authorization")
        if authorization is not None:
            scheme, _, text = authorization.partition(" ")
            found = self._bearer(text.strip()) if scheme.lower() == _SCHEME else None
        else:
            found = self._session(cookies.get(self.cookie, ""))
        return found or PUBLIC

    def _session(self, cookie: str) -> Identity | None:
        """Whose session it is. A session does not outlive the token that opened it."""
        found = self.sessions.identity(cookie)
        if found is not None and found.token and not self.tokens.accepts(found.token):
            self.sessions.end(cookie)
            return None
        return found

    def _bearer(self, text: str) -> Identity | None:
        if _equal(text, self._token):
            return Identity(name=HTTP_USER, level=Level.OPERATOR)
        return self.tokens.identity(text)

    def known(self, name: str) -> str:
        """The name of a user, for `attempts`; "" for any other text."""
        return name if name in self._users else ""

    def log_in(self, name: str, secret: str) -> Identity | None:
        """Who logs in; None if name or password is wrong. The caller asks `attempts` before."""
        return self._named(name, secret) if self._users else self._bearer(secret.strip())

    def _named(self, name: str, secret: str) -> Identity | None:
        user = self._users.get(name)
        stored = user.password.get_secret_value() if user else password.UNKNOWN_USER
        if not password.verify(secret, stored) or user is None:
            return None
        level = Level.OPERATOR if user.role == "operator" else Level.VIEWER
        return Identity(name=name, level=level)


def _equal(text: str, expected: str) -> bool:
    # In constant time: the duration of the comparison must not tell how much of a guess is right.
    return hmac.compare_digest(text.encode("utf-8", "surrogatepass"), expected.encode())


def check_protection(http: Http) -> None:
    """Refuse to listen beyond loopback without users and TLS."""
    if not http.port or http.insecure or is_loopback(http.host):
        return
    missing = [name for name, there in (("users", http.users), ("tls", http.tls)) if not there]
    if missing:
        raise ConfigError(
            f"http.host is {http.host}, beyond loopback, without "
            f"{' and '.join(f'http.{name}' for name in missing)}",
            hint=(
                "Create users with `tailrace user add` and set http.tls. Or use --insecure "
                "(http.insecure: true) in a trusted network or behind a proxy with a login."
            ),
        )
