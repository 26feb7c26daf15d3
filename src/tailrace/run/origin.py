"""Which requests may change something: programs, and pages of this very server.

A web page of another site could make the browser of a user send a POST. Browsers cannot add the
token to it (`tailrace.run.token`); this check refuses such requests before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Whether a request comes from a program, or from a page that this server has served.

    Browsers send the page's origin in `Origin` (and `Sec-Fetch-Site`); programs such as curl send
    neither. That the name in `Host` is one of this server's own is checked before, for all requests
    (`tailrace.observe.hosts`).

    >>> is_same_origin({"host": "127.0.0.1:9090"})
    True
    >>> is_same_origin({"host": "127.0.0.1:9090", "origin": "http://evil.example"})
    False
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if site not in (None, "same-origin", "none"):
        return False
    if origin is None:
        return True
    try:
        page = urlsplit(origin).netloc.lower()
    except ValueError:
        return False
    return bool(page) and page == headers.get("host", "").lower()
