"""Names of queues, topics, streams and buses: templates filled with escaped names.

SQS and SNS take `a-z A-Z 0-9 _ -` only, Kinesis and EventBridge a dot as well. A name keeps
letters, digits and `_`. Every other byte of its UTF-8 is written as `--HH`. A single `-` stands
between names, so no two tables have the same destination.
"""

from __future__ import annotations

import re
from functools import lru_cache

from tailrace.sinks.destination import Template, escaped

_ESCAPED = re.compile(r"[^A-Za-z0-9_]")


@lru_cache(maxsize=65536)
def token(name: str) -> str:
    """A name, escaped as a part of a destination.

    >>> token("order_items"), token("my-app"), token("odd.name *"), token("")
    ('order_items', 'my--2Dapp', 'odd--2Ename--20--2A', '--')
    """
    return escaped(name, _ESCAPED, mark="--")


class NameTemplate(Template):
    """A template such as `{schema}-{table}`.

    >>> from tailrace.change import Op
    >>> NameTemplate("{database}-{table}", database="shop").fill("a", "orders", Op.INSERT)
    'shop-a-orders'
    """

    kind = "name"
    joint = "-"
    token = staticmethod(token)
