"""Orders of operators about parked messages: files, which the planner of the pipeline carries out.

An order concerns the messages that were parked before it. It waits while the pipeline does not run.
"""

from __future__ import annotations

import getpass
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tailrace.parking.selection import Selection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace.state_file import StateFile

Action = Literal["retry", "drop"]
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be done with some messages."""

    id: str
    action: Action
    selection: Selection = field(default_factory=Selection)
    user: str = ""


class Orders:
    """The orders of a pipeline that are not carried out yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def submit(
        self,
        action: Action,
        selection: Selection,
        *,
        user: str = "",
        before: Callable[[Order], object] = lambda _order: None,
    ) -> Order:
        """Add an order, durably. `before` is called with it first."""
        # The planner of a query loads what locks only when there is an order.
        from tailrace.file_lock import locked  # noqa: PLC0415

        with locked(self._folder / "lock"):
            number = time.time_ns() // 1000
            while self._file(f"{action}-{number}").path.exists():
                number += 1
            order = Order(
                id=f"{action}-{number}", action=action, selection=selection, user=user or _user()
            )
            before(order)
            self._file(order.id).write(order)
        return order

    def waiting(self) -> bool:
        """Whether there is any."""
        return bool(self._ids())

    def all(self) -> list[Order]:
        """The orders, oldest first."""
        found = (self._file(name).read() for name in self._ids())
        return [order for order in found if order is not None]

    def remove(self, order: Order) -> None:
        """Remove an order that is carried out."""
        self._file(order.id).remove()

    def _ids(self) -> list[str]:
        names = (path.stem for path in self._folder.glob(f"*{_SUFFIX}"))
        return sorted(names, key=lambda name: int(name.rpartition("-")[2]))

    def _file(self, name: str) -> StateFile[Order]:
        # The planner of a query loads pydantic only when there is an order.
        from tailrace.state_file import StateFile  # noqa: PLC0415

        return StateFile(self._folder / f"{name}{_SUFFIX}", Order)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
