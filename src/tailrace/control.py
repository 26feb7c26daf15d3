"""What operators want of a running pipeline: paused or not, restarted, moved. A file per pipeline.

Commands write the file; the runner of the pipeline reads it (`tailrace.pipeline.running`), also
after a restart of its process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace import audit
from tailrace.state_file import StateFile

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.position import Position


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
        self._write(
            replace(self.read(), paused=True, paused_by=user, pause_reason=reason),
            "pause",
            user,
            reason,
        )

    def resume(self, *, user: str, reason: str = "") -> None:
        """Continue after `pause`."""
        self._write(replace(self.read(), paused=False), "resume", user, reason)

    def restart(self, *, user: str, reason: str = "") -> None:
        """Stop the query in order and start it again, also one that has failed."""
        control = self.read()
        self._write(replace(control, restarts=control.restarts + 1), "restart", user, reason)

    def move(self, action: str, position: Position, *, user: str, reason: str = "") -> None:
        """Continue after another position of the log. `action` is for the audit file."""
        control = self.read()
        moved = replace(control, moves=control.moves + 1, position=str(position))
        self._write(moved, action, user, reason, position=moved.position)

    def moved(self) -> Moved:
        """The last move that was carried out or refused."""
        return self._moved.read_or(Moved())

    def note_moved(self, moved: Moved) -> None:
        """Record that a move was carried out or refused."""
        self._moved.write(moved)

    def _write(self, control: Control, action: str, user: str, reason: str, **facts: str) -> None:
        self._file.write(replace(control, user=user, reason=reason))
        facts |= {"pipeline": self._pipeline, "reason": reason}
        audit.record(self._data, f"pipeline.{action}", user=user, **facts)
