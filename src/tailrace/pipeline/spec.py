"""The settings of a pipeline that its tasks need: small, serialisable, without secrets."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tailrace.tables import Tables

if TYPE_CHECKING:
    from tailrace.encode.shapes.shape_type import Encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A pipeline's settings as its tasks see them."""

    name: str
    tables: tuple[str, ...] = ("*.*",)
    messages: tuple[str, ...] = ()
    lanes: int = 1
    lane_key: tuple[str, ...] = ()
    """Columns whose values choose the lane. Empty: the replica identity."""
    grouped: bool = False
    """Whether an expression says what must stay in order."""
    keyed: bool = False
    """Whether an expression gives the message keys."""
    shape: str = "plain"
    encoding: Encoding = "json"
    sink: str = ""
    """The kind of sink: it escapes names in destinations."""
    destination: str = ""
    """The template of destinations."""
    database: str = ""
    system_identifier: int = 0
    slot: str = ""
    relations: tuple[int, ...] = field(default=())
    """Versions of relations that a plan with SQL stages was compiled for."""

    linger_s: float = 0.0
    """For how long changes are collected near the end of the log."""
    lookups: str = ""
    """Of a pipeline with `enrich` (`tailrace.pipeline.expressions.lookups`)."""

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
