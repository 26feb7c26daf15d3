"""Which parked messages an operator means. Texts become parameters of SQL, never part of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Messages that match everything that is set. Empty: all messages.

    >>> Selection(code="HTTP_422", key="7").condition()
    ('key = :key AND +code = :code', {'key': b'7', 'code': 'HTTP_422'})
    """

    ids: tuple[str, ...] = ()
    """Ids of messages, as consumers see them."""
    key: str | None = None
    """The key of messages, as text."""
    destination: str = ""
    """With the wildcards `*` and `?`."""
    code: str = ""
    """The code of the last error."""
    upto: int | None = None
    """The last number. Set for orders, so that they concern what was parked before them."""

    def limited(self, last: int) -> Selection:
        """The same messages, up to a number."""
        return replace(self, upto=last if self.upto is None else min(self.upto, last))

    @property
    def prefix(self) -> str | None:
        """What destinations begin with; None if they are one, or all."""
        prefix = re.split("[*?]", self.destination, maxsplit=1)[0]
        return None if prefix == self.destination else prefix

    @property
    def indexed(self) -> bool:
        """Whether it names more than destinations: its messages have an index of their own."""
        return bool(self.ids or self.code) or self.key is not None

    def condition(self) -> tuple[str, dict[str, Any]]:
        """A condition over the table of parked messages, and its parameters.

        SQLite uses the index of the first term: it selects few messages, or has them in order. A
        plus keeps it from using another one.
        """
        values: dict[str, Any] = {f"id{number}": each for number, each in enumerate(self.ids)}
        terms = [f"id IN ({', '.join(f':{name}' for name in values)})"] if values else []
        if self.key is not None:
            terms.append("key = :key")
            values["key"] = self.key.encode()
        if self.destination and self.prefix is None:
            terms.append("destination = :destination")
            values["destination"] = self.destination
        if self.code:
            terms.append("code = :code")
            values["code"] = self.code
        terms[1:] = [f"+{term}" for term in terms[1:]]
        if self.prefix is not None:
            terms.append("+destination GLOB :destination")
            # A bracket means itself: it is not one of our wildcards.
            values["destination"] = self.destination.replace("[", "[[]")
        if self.upto is not None:
            terms.append("seq <= :upto")
            values["upto"] = self.upto
        return " AND ".join(terms) or "TRUE", values
