"""References: the columns that an expression names, and the protocol that resolves them.

The renderer finds references and asks a `Names` for their Spark SQL. The implementations, one per
use of an expression, are in `names`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A column's name as an expression writes it.

    `exact`: the name is in backticks, so its case matters.
    """

    qualifier: str
    name: str
    exact: bool
    offset: int


class Names(Protocol):
    """What the names of an expression mean. Each method returns Spark SQL, or refuses the name."""

    @property
    def lookups(self) -> Collection[str]:
        """Names that may qualify a column, beside `after` and the like."""

    def value(self, reference: Reference, /) -> str:
        """The value of a column."""

    def text(self, reference: Reference, /) -> str:
        """PostgreSQL's text of a table's column."""

    def condition(self, text: str, /) -> str:
        """A condition of CASE or if(), from its Spark SQL."""

    def unchanged(self, reference: Reference, /) -> str:
        """Whether PostgreSQL left the value out because an update did not change it."""

    def absent(self, reference: Reference, /) -> str:
        """Whether PostgreSQL left the value out because it is not part of the old key."""
