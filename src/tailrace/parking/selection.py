"""Which parked messages an operator means. Texts become parameters of SQL, never part of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Messages that match everything that is set. Empty: all messages.

    >>> Selection(code="HTTP_422", key="7").condition()
    ('key = :key AND code = :code', {'key': b'7', 'code': 'HTTP_422'})
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

    def condition(self) -> tuple[str, dict[str, Any]]:
        """A condition over the table of parked messages, and its parameters."""
        terms: list[str] = []
        values: dict[str, Any] = {}
        if self.ids:
            values |= {f"id{number}": each for number, each in enumerate(self.ids)}
            terms.append(f"id IN ({', '.join(f':{name}' for name in values)})")
        if self.key is not None:
            terms.append("key = :key")
            values["key"] = self.key.encode()
        if self.destination:
            terms.append("destination GLOB :destination")
            # A bracket means itself: it is not one of our wildcards.
            values["destination"] = self.destination.replace("[", "[[]")
        if self.code:
            terms.append("code = :code")
            values["code"] = self.code
        if self.upto is not None:
            terms.append("seq <= :upto")
            values["upto"] = self.upto
        return " AND ".join(terms) or "TRUE", values
