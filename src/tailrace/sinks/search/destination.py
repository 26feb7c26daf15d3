r"""Names of indices: templates filled with escaped names.

The name of an index has no capital letters and none of `\ / * ? " < > | # , :` and blanks, does not
begin with `-`, `_` or `+`, and has at most 255 bytes. A name of the database keeps its small
letters, digits, `_` and `-`, but not a leading `_` or `-`. Every other byte of its UTF-8 is written
as `~hh`: no two names have the same index. `~` needs no escaping in URLs.

With `mode: documents` the destination also says what a message does: `DEL NAME` deletes the row's
document, and `TRUNCATE NAME` is a TRUNCATE.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from tailrace.change import Op
from tailrace.sinks.destination import DELETE, LATEST_STATE, StateTemplate, escaped, fitted

LONGEST = 255
TRUNCATE = "TRUNCATE "
_ESCAPED = re.compile(r"\A[_-]|[^a-z0-9_-]")
_INDEX = re.compile(r'[^\s\\/*?"<>|#,:A-Z\x00-\x1f\x7f_+-][^\s\\/*?"<>|#,:A-Z\x00-\x1f\x7f]*')


@lru_cache(maxsize=65536)
def token(name: str) -> str:
    """A name as one part of an index.

    >>> token("order_items"), token("my-app"), token("Orders"), token("a.b"), token("_x"), token("")
    ('order_items', 'my-app', '~4frders', 'a~2eb', '~5fx', '~')
    """
    return escaped(name, _ESCAPED, mark="~", digits="02x")


class IndexTemplate(StateTemplate):
    """A template such as `{schema}.{table}`.

    >>> IndexTemplate("cdc-{table}", database="shop").fill("public", "Orders", Op.DELETE)
    'cdc-~4frders'
    >>> state = IndexTemplate("SET cdc-{table}", database="shop")
    >>> [state.fill("a", "orders", op) for op in (Op.UPDATE, Op.DELETE, Op.TRUNCATE)]
    ['cdc-a.orders', 'DEL cdc-a.orders', 'TRUNCATE cdc-a.orders']
    """

    kind = "index"
    token = staticmethod(token)

    def __init__(self, template: str, *, database: str) -> None:
        super().__init__(template, database=database)
        self._marks_truncate = template.startswith(LATEST_STATE)

    def fill(self, schema: str, table: str, op: Op) -> str:
        """The index of changes of one table, with what becomes of their rows."""
        name = super().fill(schema, table, op)
        mark = DELETE if name.startswith(DELETE) else ""
        if self._marks_truncate and op is Op.TRUNCATE:
            mark = TRUNCATE
        return mark + fitted(name.removeprefix(DELETE), LONGEST, mark="~")


class Target(NamedTuple):
    """A destination of mode `documents`, taken apart."""

    name: str
    deletes: bool
    truncates: bool


def target_of(destination: bytes) -> Target:
    """The parts of a destination.

    >>> target_of(b"DEL public.orders")
    Target(name='public.orders', deletes=True, truncates=False)
    """
    text = destination.decode("utf-8", "replace")
    deletes, truncates = text.startswith(DELETE), text.startswith(TRUNCATE)
    return Target(text.removeprefix(DELETE).removeprefix(TRUNCATE), deletes, truncates)


def is_index(name: str) -> bool:
    """Whether an index, alias or data stream can have this name.

    >>> [is_index(name) for name in ("public.orders", "~4frders", "Orders", "_all", "a b", ".", "")]
    [True, True, False, False, False, False, False]
    """
    fits = len(name.encode()) <= LONGEST and name not in (".", "..")
    return fits and _INDEX.fullmatch(name) is not None
