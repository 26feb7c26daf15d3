"""Which requests may change something: programs, and pages of this very server.

The endpoints have no login, so any web page that a user opens could make the browser send a POST
to them. This check refuses such requests.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping


def is_same_origin(headers: Mapping[str, str], own_host: str) -> bool:
    """Whether a request comes from a program, or from a page that this server has served.

    Browsers send the page's origin in `Origin` (and `Sec-Fetch-Site`); programs such as curl send
    neither. That `Origin` and `Host` agree is not enough: with DNS rebinding, a foreign name points
    to this server. So the name must be an address, `localhost` or `http.host`.

    >>> is_same_origin({"host": "127.0.0.1:9090"}, "127.0.0.1")
    True
    >>> is_same_origin({"host": "evil.com", "origin": "http://evil.com"}, "127.0.0.1")
    False
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is None and site is None:
        return True
    if site not in (None, "same-origin", "none"):
        return False
    host = headers.get("host", "").lower()
    try:
        page = host if origin is None else urlsplit(origin).netloc.lower()
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return page == host and (name in ("localhost", own_host.lower()) or _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
