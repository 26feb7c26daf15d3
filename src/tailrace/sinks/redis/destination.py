r"""Names of streams, channels and keys: templates filled with escaped names.

A key of Redis may be any bytes. What separates names or has a meaning in patterns of Redis (`.`,
`:`, `{}`, `*?[]^\`, blanks) is written as `%XX` per UTF-8 byte, and so is `%`. No two names share a
destination.

In mode `string` a message either sets a key or deletes it, and the destination says which: `DEL `
before the name deletes. Templates fill it in for deletes, and a `route` may do the same.
"""

from __future__ import annotations

import re
from functools import lru_cache

from tailrace.sinks.destination import StateTemplate, escaped

_SPECIAL = re.compile(r"[.:{}*?\[\]^\\%\s\x00-\x1f\x7f-\x9f]")


@lru_cache(maxsize=65536)
def token(name: str) -> str:
    """A name as one part of a destination.

    >>> token("order_items"), token("odd.name *"), token("a%b"), token("")
    ('order_items', 'odd%2Ename%20%2A', 'a%25b', '%')
    """
    return escaped(name, _SPECIAL, mark="%")


class KeyTemplate(StateTemplate):
    """A template such as `cdc:{schema}.{table}`.

    >>> from tailrace.change import Op
    >>> KeyTemplate("cdc:{table}", database="shop").fill("a", "orders", Op.DELETE)
    'cdc:a.orders'
    >>> state = KeyTemplate("SET cdc:{table}", database="shop")
    >>> state.fill("a", "orders", Op.UPDATE), state.fill("a", "orders", Op.DELETE)
    ('cdc:a.orders', 'DEL cdc:a.orders')
    """

    kind = "name"
    token = staticmethod(token)
