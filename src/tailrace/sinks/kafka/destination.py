"""Topics of Kafka: templates filled with escaped names.

A topic has at most 249 of the characters `a-z A-Z 0-9 . _ -`. A name keeps them except the dot,
which separates names. Every other byte of its UTF-8 is written as `-xHH`, and so is a `-` that
would read as the start of such an escape: no two names have the same topic. A topic that is too
long is truncated, with a digest of the whole at its end.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from tailrace.sinks.destination import Template, escaped, fitted

if TYPE_CHECKING:
    from tailrace.change import Op

LONGEST = 249
_ESCAPED = re.compile(r"-(?=x|\Z)|[^A-Za-z0-9_-]")


@lru_cache(maxsize=65536)
def token(name: str) -> str:
    """A name, escaped as a part of a topic.

    >>> token("order_items"), token("my-app"), token("odd.name *"), token("a-x2E"), token("")
    ('order_items', 'my-app', 'odd-x2Ename-x20-x2A', 'a-x2Dx2E', '-x')
    """
    return escaped(name, _ESCAPED)


class TopicTemplate(Template):
    """A template such as `{database}.{schema}.{table}`.

    >>> from tailrace.change import Op
    >>> TopicTemplate("{database}.{schema}.{table}", database="shop").fill("a", "orders", Op.INSERT)
    'shop.a.orders'
    """

    kind = "topic"
    token = staticmethod(token)

    def fill(self, schema: str, table: str, op: Op) -> str:
        """The topic of changes of one table."""
        return fitted(super().fill(schema, table, op), LONGEST)
