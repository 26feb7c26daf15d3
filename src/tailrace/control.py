"""What operators want of a running pipeline: paused or not, and restarted. One file per pipeline.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The desired state of a pipeline."""

    paused: bool = False
    restarts: int = 0
    """How often a restart was requested."""
    reason: str = ""
    user: str = ""


class ControlFile:
    """The desired state of one pipeline, in a data folder."""

    def __init__(self, data: Path, pipeline: str) -> None:
        self._data = data
        self._pipeline = pipeline
        self._file = StateFile(data / "control" / f"{pipeline}.json", Control)

    def read(self) -> Control:
        """The desired state; running if nothing else was requested."""
        return self._file.read_or(Control())

    def pause(self, *, user: str, reason: str = "") -> None:
        """Stop delivery in order, until `resume`."""
        self._write(replace(self.read(), paused=True), "pause", user, reason)

    def resume(self, *, user: str, reason: str = "") -> None:
        """Continue after `pause`."""
        self._write(replace(self.read(), paused=False), "resume", user, reason)

    def restart(self, *, user: str, reason: str = "") -> None:
        """Stop the query in order and start it again, also one that has failed."""
        control = self.read()
        self._write(replace(control, restarts=control.restarts + 1), "restart", user, reason)

    def _write(self, control: Control, action: str, user: str, reason: str) -> None:
        self._file.write(replace(control, user=user, reason=reason))
        audit.record(
            self._data, f"pipeline.{action}", user=user, pipeline=self._pipeline, reason=reason
        )
