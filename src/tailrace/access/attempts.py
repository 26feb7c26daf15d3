"""Limits for guesses: an address whose logins fail waits longer and longer."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

FREE = 5
"""Failures without a wait."""
_FIRST_S, _MAX_S = 2.0, 900.0
_FORGET_S = 3600.0
_MAX_ADDRESSES = 10_000
_IPV6_PREFIX = 64


@dataclass(slots=True)
class _Failures:
    of_users: Counter[str] = field(default_factory=Counter)
    last_at: float = 0.0


class Attempts:
    """The failed logins per address, whatever user they name.

    An attempt counts when it begins: attempts in parallel are no more than those one after another.

    >>> attempts = Attempts(clock=lambda: 0.0)
    >>> [attempts.begin("10.0.0.7", "ann") for _ in range(7)]
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0]
    >>> attempts.begin("10.0.0.8", "ann")
    0.0
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, _Failures] = {}
        self._lock = threading.Lock()

    def begin(self, address: str, user: str) -> float:
        """Seconds until the address may try again; if 0, an attempt has begun, which counts as
        failed until `succeeded`. `user` is "" for a name that no user has."""
        now, network = self._clock(), _network(address)
        with self._lock:
            found = self._failures.pop(network, None)
            if found is None or now - found.last_at > _FORGET_S:
                found = _Failures()
            # The address that tried last is at the end.
            self._failures[network] = found
            if len(self._failures) > _MAX_ADDRESSES:
                del self._failures[next(iter(self._failures))]
            failures = found.of_users.total()
            if failures > FREE:
                wait_s: float = min(_FIRST_S * 2 ** min(failures - FREE - 1, 64), _MAX_S)
                if (left_s := found.last_at + wait_s - now) > 0:
                    return left_s
            found.of_users[user] += 1
            found.last_at = now
            return 0.0

    def failed(self, address: str) -> None:
        """The attempt has failed: the wait begins now, however long that took to find out."""
        with self._lock:
            if (found := self._failures.get(_network(address))) is not None:
                found.last_at = self._clock()

    def succeeded(self, address: str, user: str) -> None:
        """Forget the failures of a user at an address, and no others: a viewer who logs in between
        the guesses must not have more guesses for the password of an operator."""
        with self._lock:
            found = self._failures.get(_network(address))
            if found is None:
                return
            if user:
                del found.of_users[user]
            else:
                # The attempt itself.
                found.of_users[user] -= 1
            if not found.of_users.total():
                del self._failures[_network(address)]


def _network(address: str) -> str:
    """The address, or the network of an IPv6 address: a client has 2⁶⁴ of them."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, _IPV6_PREFIX), strict=False))
    return address
