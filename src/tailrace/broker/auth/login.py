"""Authentication (SASL): the mechanisms, and the state of the login of one connection.

SCRAM never sends a password. PLAIN does, so it is offered over TLS only. A failed login is reported
with a delay, and without saying whether the user name or the password is wrong.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from typing import TYPE_CHECKING

from tailrace.broker.auth import scram
from tailrace.errors import MalformedError

if TYPE_CHECKING:
    from tailrace.broker.auth.access import Access

PLAIN = "PLAIN"
_PLAIN_KEYS = "SCRAM-SHA-256"
"""The mechanism whose keys verify a password of PLAIN."""


class LoginError(Exception):
    """A login fails. The message is the name of Kafka's error code."""


class Login:
    """The login of one connection: choose a mechanism, then exchange tokens.

    A client may log in again on the same connection, as the same user (KIP-368).
    """

    def __init__(self, access: Access, *, encrypted: bool) -> None:
        self._access = access
        self.mechanisms = (*scram.HASHES, PLAIN) if encrypted else tuple(scram.HASHES)
        self.user: str | None = None
        """The authenticated user."""
        self.claimed = ""
        """The user name that the client sent."""
        self.failed = False
        self._mechanism: str | None = None
        self._exchange: scram.Exchange | None = None

    @property
    def done(self) -> bool:
        """Whether a user has logged in, and no exchange is in progress."""
        return self.user is not None and self._mechanism is None

    def choose(self, mechanism: str) -> None:
        """Choose the mechanism."""
        if mechanism not in self.mechanisms:
            raise LoginError("unsupported_sasl_mechanism")
        self._mechanism, self._exchange = mechanism, None

    async def step(self, token: bytes) -> bytes:
        """The response to a token; sets `user` after the last one."""
        if self._mechanism is None:
            raise LoginError("illegal_sasl_state")
        try:
            if self._mechanism == PLAIN:
                return await self._plain(token)
            return self._scram(self._mechanism, token)
        except MalformedError as error:
            raise LoginError("sasl_authentication_failed") from error

    def _scram(self, mechanism: str, token: bytes) -> bytes:
        if self._exchange is None:
            self._exchange = scram.Exchange(mechanism, secrets.token_urlsafe(24))
            return self._exchange.first(token, lambda name: self._keys(name, mechanism))
        answer = self._exchange.final(token)
        self._enter(proven=answer is not None)
        assert answer is not None
        return answer

    async def _plain(self, token: bytes) -> bytes:
        on_behalf, name, password = _parts(token)
        stored = self._keys(name, _PLAIN_KEYS)
        # In a thread: it takes 2 ms, and thousands of clients may reconnect at once.
        derived = await asyncio.to_thread(
            scram.keys, _PLAIN_KEYS, password, stored.salt, stored.iterations
        )
        matches = hmac.compare_digest(derived.stored, stored.stored)
        self._enter(proven=matches and on_behalf in ("", name))
        return b""

    def _keys(self, name: str, mechanism: str) -> scram.Keys:
        self.claimed = name
        return self._access.keys(name, mechanism)

    def _enter(self, *, proven: bool) -> None:
        """Set the user. It may have been removed meanwhile, or differ from an earlier login."""
        exists = self.claimed in self._access.users
        if not proven or not exists or self.user not in (None, self.claimed):
            raise LoginError("sasl_authentication_failed")
        self.user = self.claimed
        self._mechanism = self._exchange = None


def _parts(token: bytes) -> tuple[str, str, str]:
    try:
        on_behalf, name, password = token.decode().split("\0")
    except ValueError as error:
        raise MalformedError("invalid PLAIN token") from error
    return on_behalf, name, password
