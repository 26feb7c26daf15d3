"""A message as the demo's consumer receives it: shape `bridge`, in JSON."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import orjson

from tailrace.change import Op

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One change that was received. Times are seconds since 1970."""

    op: Op
    table: str
    """With its schema, unless that is `public`. For a logical message, the prefix."""
    data: Mapping[str, Any]
    old: Mapping[str, Any]
    unchanged: tuple[str, ...]
    committed_at: float
    received_at: float

    @property
    def latency_ms(self) -> float:
        """From the commit in PostgreSQL to the reception."""
        return (self.received_at - self.committed_at) * 1000


def parse(payload: bytes, received_at: float) -> Arrival:
    """Read a message."""
    message = orjson.loads(payload)
    return Arrival(
        op=Op(message["operation"].lower()),
        table=_table(message),
        data=message["data"],
        old=message.get("old") or {},
        unchanged=tuple(message.get("unchanged") or ()),
        committed_at=datetime.fromisoformat(message["timestamp"]).timestamp(),
        received_at=received_at,
    )


def _table(message: Mapping[str, Any]) -> str:
    if message["table"] is None:
        return str(message["data"]["prefix"])
    if message["schema"] == "public":
        return str(message["table"])
    return f"{message['schema']}.{message['table']}"
