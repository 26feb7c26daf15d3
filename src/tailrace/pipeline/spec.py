"""What tasks need to know of a pipeline: small, serialisable, without secrets of the source."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tailrace.tables import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A pipeline's settings as its tasks see them."""

    name: str
    tables: tuple[str, ...] = ("*.*",)
    messages: tuple[str, ...] = ()
    lanes: int = 1
    lane_key: tuple[str, ...] = ()
    """Columns whose values choose the lane; none: the replica identity."""
    keyed: bool = False
    """Whether an expression gives the message keys."""
    shape: Literal["bridge", "creek", "debezium", "sequin", "plain", "record"] = "bridge"
    encoding: Literal["msgpack", "json", "avro"] = "msgpack"
    sink: Literal["nats", "kafka", "shadow"] = "nats"
    subject: str = "cdc.{table}.{operation}"
    """The template of destinations, in the words of the sink."""
    database: str = ""
    system_identifier: int = 0
    slot: str = ""
    relations: tuple[int, ...] = field(default=())
    """Versions of relations a plan with SQL was made for."""

    def dump(self) -> str:
        """As the text of an option."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Spec:
        """From the text of an option."""
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in json.loads(text).items()
        }
        return cls(**values)

    def wanted(self) -> Tables:
        """The tables of the pipeline."""
        return Tables(self.tables)
