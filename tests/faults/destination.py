"""What the checker of parking needs of a server that a pipeline delivers to.

The rows are counters. A change whose note is not empty is refused for good.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Change = tuple[int, int]
"""A row's key and its counter."""


def changes(payloads: Iterable[bytes | str]) -> list[Change]:
    """What messages in the shape `plain` are about."""
    rows = [json.loads(payload)["after"] for payload in payloads]
    return [(row["id"], row["n"]) for row in rows]


class Destination:
    """A server. A context manager."""

    repeats_per_fault = 0
    """How many messages of a lane may be accepted twice because of one fault, as the sink says."""

    def __init__(self, folder: Path, seed: int) -> None:
        """`folder` is for its files."""

    def sink(self, name: str, *, healed: bool = False) -> dict[str, Any]:
        """The settings of the sink of a pipeline; `healed`: so that nothing is refused any more."""
        raise NotImplementedError

    def accepted(self, name: str) -> list[Change]:
        """The changes of a pipeline, in the order in which they were accepted."""
        raise NotImplementedError

    def allowed_repeats(self, faults: int, lanes: int) -> int:
        """How many changes of a pipeline may have been accepted twice."""
        return faults * lanes * self.repeats_per_fault

    def prepare(self) -> None:
        """The pipelines run, and there are no changes yet."""

    def disturb(self) -> None:
        """Fail for a moment."""

    def crash(self) -> bool:
        """Die, and start again; whether it can."""
        return False

    def heal(self) -> None:
        """Refuse nothing any more."""

    def __enter__(self) -> Destination:
        return self

    def __exit__(self, *_: object) -> None:
        """End what was started."""
