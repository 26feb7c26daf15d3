"""Changes onto standard output, as text or as JSON lines.

JSON is UTF-8 whatever the locale says. Text has colours on a terminal and is folded to its width;
elsewhere a change is a line.
"""

from __future__ import annotations

import os
import select
import sys
from typing import TYPE_CHECKING

from rich.console import Console

from tailrace.cli.log.render import json_line, render_text, render_transaction

if TYPE_CHECKING:
    from tailrace.change import Change


class Terminal(Console):
    """Standard output for data: nothing is markup, and a reader that leaves is for the caller."""

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        """Rich would end the process with code 1."""
        raise BrokenPipeError


class Printer:
    """Shows changes one after another; `flush` at the end of a batch."""

    def __init__(self, *, as_json: bool, console: Console | None = None) -> None:
        self._as_json = as_json
        # A character the terminal's encoding lacks is no reason to stop.
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        self._console = console or Terminal()
        self._previous: Change | None = None

    def show(self, change: Change) -> None:
        """Write one change, under its transaction's line when that is a new one."""
        if self._as_json:
            sys.stdout.buffer.write(json_line(change).encode() + b"\n")
            return
        if not _together(self._previous, change):
            self._console.print(render_transaction(change))
        width = self._console.width if self._console.is_terminal else None
        self._console.print(render_text(change, width=width))
        self._previous = change

    def flush(self) -> None:
        """Hand over what is still buffered."""
        sys.stdout.flush()


def _together(previous: Change | None, change: Change) -> bool:
    return previous is not None and (previous.position.lsn, previous.xid) == (
        change.position.lsn,
        change.xid,
    )


def reader_gone() -> bool:
    """Whether standard output is a pipe that nobody reads any more.

    A write would tell, but a follower of an idle log does not write.
    """
    poller = select.poll()
    poller.register(sys.stdout.fileno(), 0)
    return any(state & select.POLLERR for _, state in poller.poll(0))


def close_quietly() -> None:
    """After a broken pipe: let the interpreter's own last flush go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
