"""Logging in: which mechanisms there are, and where a connection stands.

SCRAM never sends a password. PLAIN does, so it is there over TLS alone. Whoever fails is told so a
little later, and no more than that: not whether it was the name or the password.
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
_PLAIN_BY = "SCRAM-SHA-256"
"""Whose keys a password that is sent is compared with."""


class LoginError(Exception):
    """Kafka's name for why somebody is not let in."""


class Login:
    """Of one connection: a mechanism is chosen, then tokens go back and forth.

    It may be done again later, by the same user.
    """

    def __init__(self, access: Access, *, encrypted: bool) -> None:
        self._access = access
        self.mechanisms = (*scram.HASHES, PLAIN) if encrypted else tuple(scram.HASHES)
        self.user: str | None = None
        """Who it is, once that is proven."""
        self.claimed = ""
        """Who it says it is."""
        self.failed = False
        self._mechanism: str | None = None
        self._exchange: scram.Exchange | None = None

    @property
    def done(self) -> bool:
        """Whether nothing more is waited for, and somebody has logged in."""
        return self.user is not None and self._mechanism is None

    def choose(self, mechanism: str) -> None:
        """The client wants this mechanism."""
        if mechanism not in self.mechanisms:
            raise LoginError("unsupported_sasl_mechanism")
        self._mechanism, self._exchange = mechanism, None

    async def step(self, token: bytes) -> bytes:
        """The answer to a token; `user` is set when it was the last."""
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
        kept = self._keys(name, _PLAIN_BY)
        # Two milliseconds, and thousands of clients may come back at once.
        made = await asyncio.to_thread(scram.keys, _PLAIN_BY, password, kept.salt, kept.iterations)
        right = hmac.compare_digest(made.stored, kept.stored)
        self._enter(proven=right and on_behalf in ("", name))
        return b""

    def _keys(self, name: str, mechanism: str) -> scram.Keys:
        self.claimed = name
        return self._access.keys(name, mechanism)

    def _enter(self, *, proven: bool) -> None:
        """The user may be gone since it began, or be another one than before."""
        there = self.claimed in self._access.users
        if not proven or not there or self.user not in (None, self.claimed):
            raise LoginError("sasl_authentication_failed")
        self.user = self.claimed
        self._mechanism = self._exchange = None


def _parts(token: bytes) -> tuple[str, str, str]:
    try:
        on_behalf, name, password = token.decode().split("\0")
    except ValueError as error:
        raise MalformedError("a token of PLAIN that is none") from error
    return on_behalf, name, password
