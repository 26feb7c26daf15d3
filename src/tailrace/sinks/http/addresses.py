"""Where requests may go: not to private addresses, whatever a name resolves to.

The address is checked when a connection is made, and the connection goes to the checked address. So
a name that resolves to another address a moment later changes nothing.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

import httpcore

from tailrace.errors import SinkRefusedError, SinkUnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterable

    Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def is_public(address: Address) -> bool:
    """Whether an address is of the internet, also if it is embedded in an IPv6 address.

    >>> from ipaddress import ip_address
    >>> [is_public(ip_address(each)) for each in ("1.1.1.1", "10.0.0.1", "169.254.169.254")]
    [True, False, False]
    >>> [is_public(ip_address(each)) for each in ("::ffff:10.0.0.1", "64:ff9b::7f00:1")]
    [False, False]
    """
    if isinstance(address, ipaddress.IPv6Address):
        teredo = address.teredo
        embedded = address.ipv4_mapped or address.sixtofour or (teredo and teredo[1])
        if address in _NAT64:
            embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if embedded and not is_public(embedded):
            return False
    return address.is_global and not address.is_multicast


class CheckedAddresses(httpcore.NetworkBackend):
    """Connects to public addresses only, unless private ones are allowed."""

    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to the first address of the host that answers."""
        failed: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in self._addresses(host, port):
            try:
                return self._backend.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        raise failed

    def _addresses(self, host: str, port: int) -> list[str]:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise SinkUnreachableError(f"{host} cannot be resolved: {error}") from error
        addresses = [str(each[4][0]) for each in found]
        for address in addresses:
            # An IPv6 address may name its interface: fe80::1%eth0.
            bare = ipaddress.ip_address(address.partition("%")[0])
            if not self._allow_private and not is_public(bare):
                raise SinkRefusedError(
                    f"{host} is the private address {address}",
                    hint="Set `allow_private: true` if the receiver is in your own network.",
                )
        return addresses
