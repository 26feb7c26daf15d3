"""Limits for guesses: an address whose logins fail waits longer and longer."""

from __future__ import annotations

import ipaddress
import threading
import time
from dataclasses import dataclass
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
    count: int = 0
    last_at: float = 0.0


class Attempts:
    """The failed logins per address.

    >>> attempts = Attempts(clock=lambda: 0.0)
    >>> for _ in range(6): attempts.failed("10.0.0.7")
    >>> attempts.wait_s("10.0.0.7"), attempts.wait_s("10.0.0.8")
    (2.0, 0.0)
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, _Failures] = {}
        self._lock = threading.Lock()

    def wait_s(self, address: str) -> float:
        """Seconds until the address may try again."""
        found = self._failures.get(_network(address))
        if found is None or found.count <= FREE:
            return 0.0
        wait_s: float = min(_FIRST_S * 2 ** (found.count - FREE - 1), _MAX_S)
        return max(found.last_at + wait_s - self._clock(), 0.0)

    def failed(self, address: str) -> None:
        """Note a failure."""
        now, network = self._clock(), _network(address)
        with self._lock:
            found = self._failures.pop(network, _Failures())
            if now - found.last_at > _FORGET_S:
                found.count = 0
            found.count, found.last_at = min(found.count + 1, 64), now
            # The address that failed last is at the end.
            self._failures[network] = found
            if len(self._failures) > _MAX_ADDRESSES:
                del self._failures[next(iter(self._failures))]

    def succeeded(self, address: str) -> None:
        """Forget the failures of an address."""
        with self._lock:
            self._failures.pop(_network(address), None)


def _network(address: str) -> str:
    """The address, or the network of an IPv6 address: a client has 2⁶⁴ of them."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, _IPV6_PREFIX), strict=False))
    return address
