"""What operators want of a running pipeline: paused or not, restarted, moved. A file per pipeline.

Commands write the file; the runner of the pipeline reads it (`tailrace.pipeline.running`), also
after a restart of its process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from tailrace import audit
from tailrace.state_file import StateFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace.position import Position

MoveAction = Literal["rewind", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The desired state of a pipeline."""

    paused: bool = False
    restarts: int = 0
    """How often a restart was requested."""
    moves: int = 0
    """How often a move to another position was requested."""
    position: str = ""
    """Where the last move leads."""
    action: Literal["", "rewind", "skip"] = ""
    """What the last move is: `rewind` or `skip`. Empty in files of earlier releases."""
    reason: str = ""
    user: str = ""
    paused_by: str = ""
    """Who paused it, and why: later orders have their own user and reason."""
    pause_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The last move that was carried out or refused."""

    moves: int = 0
    refusal: str = ""


class ControlFile:
    """The desired state of one pipeline, in a data folder."""

    def __init__(self, data: Path, pipeline: str) -> None:
        self._data = data
        self._pipeline = pipeline
        self._file = StateFile(data / "control" / f"{pipeline}.json", Control)
        self._moved = StateFile(data / "control" / f"{pipeline}.moved.json", Moved)

    def read(self) -> Control:
        """The desired state; running if nothing else was requested."""
        return self._file.read_or(Control())

    def pause(self, *, user: str, reason: str = "") -> None:
        """Stop delivery in order, until `resume`."""

        def paused(control: Control) -> Control:
            return replace(control, paused=True, paused_by=user, pause_reason=reason)

        self._change("pause", paused, user, reason)

    def resume(self, *, user: str, reason: str = "") -> None:
        """Continue after `pause`."""
        self._change("resume", lambda control: replace(control, paused=False), user, reason)

    def restart(self, *, user: str, reason: str = "") -> None:
        """Stop the query in order and start it again, also one that has failed."""

        def restarted(control: Control) -> Control:
            return replace(control, restarts=control.restarts + 1)

        self._change("restart", restarted, user, reason)

    def move(
        self, action: MoveAction, position: Position, *, user: str, reason: str = ""
    ) -> Control:
        """Continue after another position of the log; the desired state with this move."""

        def moved(control: Control) -> Control:
            moves = control.moves + 1
            return replace(control, moves=moves, position=str(position), action=action)

        return self._change(action, moved, user, reason, position=str(position))

    def moved(self) -> Moved:
        """The last move that was carried out or refused."""
        return self._moved.read_or(Moved())

    def note_moved(self, moved: Moved) -> None:
        """Record that a move was carried out or refused."""
        self._moved.write(moved)

    def _change(
        self,
        action: str,
        change: Callable[[Control], Control],
        user: str,
        reason: str,
        **facts: str,
    ) -> Control:
        facts |= {"pipeline": self._pipeline, "reason": reason}
        with self._file.exclusive():
            control = replace(change(self.read()), user=user, reason=reason)
            audit.record(self._data, f"pipeline.{action}", user=user, **facts)
            self._file.write(control)
        return control
