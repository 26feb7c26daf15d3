"""Moves of running pipelines along the log: `tailrace pipeline rewind | skip`, and the console.

A move is planned here, ordered in the control file (`tailrace.control`), and carried out by the
pipeline's own runner between two queries.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.control import ControlFile
from tailrace.log.start import parse_start
from tailrace.parking.listing import Listing
from tailrace.parking.parking import folder_of, store_of
from tailrace.pipeline import reset
from tailrace.position import Lsn, Position

if TYPE_CHECKING:
    from tailrace.config import Config
    from tailrace.control import Control, MoveAction
    from tailrace.log.start import Start
    from tailrace.pipeline.reset import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A move that may be made."""

    action: MoveAction
    plan: Plan
    parked: int
    """Messages that are parked, and can no longer be retried after the move."""

    @property
    def to(self) -> Position:
        """The position after which the pipeline continues."""
        return self.plan.after.position

    def lines(self) -> list[str]:
        """What the move does, one sentence per line."""
        plan, count = self.plan, self.plan.repeated + self.plan.skipped
        done = "delivered again" if self.action == "rewind" else "skipped"
        reached = f"everything up to {plan.delivered}" if plan.delivered else "nothing yet"
        lines = [
            f"{plan.pipeline} has delivered {reached}.",
            f"{count:,} changes are {done}; {plan.ahead:,} follow.",
        ]
        if self.parked:
            lines.append(
                f"{self.parked:,} parked messages can then no longer be retried: export or drop "
                "them."
            )
        return lines


def plan_move(config: Config, name: str, action: MoveAction, where: str) -> Move:
    """What a move does. Raises ConfigError if the pipeline may not move there."""
    planned = reset.plan(config, name, place(where))
    reset.check_move(config, planned, action)
    with closing(Listing(store_of(folder_of(config.data, name)))) as listing:
        return Move(action=action, plan=planned, parked=listing.totals().messages)


def order_move(config: Config, move: Move, *, user: str, reason: str) -> Control:
    """Have the pipeline moved, by its runner."""
    control = ControlFile(config.data, move.plan.pipeline)
    return control.move(move.action, move.to, user=user, reason=reason)


def place(text: str) -> Start | Position:
    """A position of the log, as operators write it: an event id, a position, an LSN, a time.

    >>> str(place("00000000016b3748-2"))
    '0/16B3748.2'
    """
    if event := re.fullmatch(r"([0-9a-f]{16})-(\d{1,18})", text):
        return Position(Lsn(int(event[1], 16)), int(event[2]))
    if re.fullmatch(r"[0-9A-F]{1,8}/[0-9A-F]{1,8}\.\d{1,18}", text):
        return Position.parse(text)
    return parse_start("latest" if text == "now" else text)
