"""Topics: a name in the project of the sink, or the path of a topic, which may be of another one.

Pub/Sub takes letters, digits and `-._~+%`, first a letter, 3 to 255 characters, and reserves names
that begin with `goog`. A name of the database keeps letters, digits and `_`. Every other byte of
its UTF-8 is written as `%HH`, so no two tables have the same topic.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from tailrace.sinks.destination import Template, escaped, fitted

if TYPE_CHECKING:
    from tailrace.change import Op

LONGEST = 255
_ESCAPED = re.compile(r"[^A-Za-z0-9_]")
PROJECT = re.compile(r"[a-z][a-z0-9.:-]{1,98}[a-z0-9]")
_NAME = rf"(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{{2,{LONGEST - 1}}}"
_TOPIC = re.compile(rf"(?:projects/({PROJECT.pattern})/topics/)?({_NAME})")


@lru_cache(maxsize=65536)
def token(name: str) -> str:
    """A name, escaped as a part of a topic.

    >>> token("order_items"), token("my-app"), token("odd.name *"), token("")
    ('order_items', 'my%2Dapp', 'odd%2Ename%20%2A', '%')
    """
    return escaped(name, _ESCAPED, mark="%")


class TopicTemplate(Template):
    """A template such as `cdc.{table}`.

    >>> from tailrace.change import Op
    >>> TopicTemplate("cdc.{table}", database="shop").fill("a", "orders", Op.INSERT)
    'cdc.a.orders'
    """

    kind = "topic"
    token = staticmethod(token)

    def fill(self, schema: str, table: str, op: Op) -> str:
        """The topic of changes of one table. A longer name is cut, with a digest of all of it."""
        folder, slash, name = super().fill(schema, table, op).rpartition("/")
        return folder + slash + fitted(name, LONGEST, mark="%")


def topic_of(destination: str, project: str) -> tuple[str, str] | None:
    """The project and the name of a topic; None if the destination is not a topic.

    >>> topic_of("orders", "shop"), topic_of("projects/other/topics/orders", "shop")
    (('shop', 'orders'), ('other', 'orders'))
    >>> topic_of("_orders", "shop"), topic_of("google", "shop"), topic_of("it", "shop")
    (None, None, None)
    """
    match = _TOPIC.fullmatch(destination)
    return None if match is None else (match[1] or project, match[2])
