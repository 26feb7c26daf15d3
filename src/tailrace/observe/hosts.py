"""Which `Host` a request to the endpoints may name.

GET endpoints have no login. A web page could read them through the browser of a user if the name of
the page's own site resolved to this server (DNS rebinding): the browser then takes both for one
site. That name is in `Host`, so only names and addresses of this server are accepted.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable


class AllowedHosts:
    """The names and addresses of a server that listens on `listen`; `names` are further names.

    >>> hosts = AllowedHosts("127.0.0.1")
    >>> hosts.allow("localhost:9090"), hosts.allow("[::1]:9090"), hosts.allow("evil.example")
    (True, True, False)
    """

    def __init__(self, listen: str, names: Iterable[str] = ()) -> None:
        self._names = {_folded(name) for name in (listen, *names)}
        address = _address(listen)
        self._any_address = address is not None and address.is_unspecified

    def allow(self, host: str, local: str = "") -> bool:
        """Whether this `Host` is the server's. `local` is the connection's address on our side.

        Rebinding needs a name, so a server on all addresses accepts any address.
        """
        try:
            name = _folded(urlsplit(f"//{host}").hostname or "")
        except ValueError:
            return False
        address = _address(name)
        if address is None:
            return name in self._names or name == "localhost" or name.endswith(".localhost")
        own = address.is_loopback or name in self._names or address == _address(local)
        return own or self._any_address


def _folded(name: str) -> str:
    return name.lower().rstrip(".")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
