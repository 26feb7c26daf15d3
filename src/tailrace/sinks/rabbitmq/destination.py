"""Destinations: `EXCHANGE/ROUTING_KEY`, templates filled with escaped names.

`/KEY` is the default exchange, which delivers to the queue KEY. A `route` may give a routing key
alone, without a slash: its exchange is that of the settings. In names of the database, what
separates words of a routing key, is a wildcard of bindings or separates the two (`.`, `*`, `#`,
`/`), blanks and control characters are written as `%XX` per UTF-8 byte, and so is `%`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from tailrace.sinks.destination import Template, escaped

_SPECIAL = re.compile(r"[.*#/%\s\x00-\x1f\x7f-\x9f]")
_LONGEST = 255
"""Bytes of a short string of AMQP."""


class Destination(NamedTuple):
    """Where a message is published to."""

    exchange: bytes
    routing_key: bytes

    @classmethod
    def parse(cls, text: bytes, exchange: str) -> Destination | None:
        """Read a destination; None if it is invalid. `exchange` is that of the settings.

        >>> Destination.parse(b"cdc/orders", ""), Destination.parse(b"/orders", "cdc")
        (Destination(exchange=b'cdc', routing_key=b'orders'), \
Destination(exchange=b'', routing_key=b'orders'))
        >>> Destination.parse(b"orders", "cdc")
        Destination(exchange=b'cdc', routing_key=b'orders')
        >>> Destination.parse(b"orders", "{schema}"), Destination.parse(b"/", "cdc")
        (None, None)
        """
        before, slash, after = text.partition(b"/")
        found = cls(before, after) if slash else cls(exchange.encode(), before)
        known = slash or "{" not in exchange
        # The default exchange needs the name of a queue.
        named = found.exchange or found.routing_key
        return found if known and named and max(map(len, found)) <= _LONGEST else None


@lru_cache(maxsize=65536)
def token(name: str) -> str:
    """A name as one word of a routing key.

    >>> token("order_items"), token("odd.name *"), token("a%b"), token("")
    ('order_items', 'odd%2Ename%20%2A', 'a%25b', '%')
    """
    return escaped(name, _SPECIAL, mark="%")


class ExchangeTemplate(Template):
    """A template such as `cdc/{schema}.{table}`.

    >>> from tailrace.change import Op
    >>> template = ExchangeTemplate("cdc/{schema}.{table}.{operation}", database="shop")
    >>> template.fill("public", "orders", Op.DELETE)
    'cdc/public.orders.delete'
    """

    kind = "routing key"
    token = staticmethod(token)
