"""Prints changes to standard output, as text or as JSON lines.

JSON is UTF-8 in every locale. On a terminal, text has colours and is folded to the width; elsewhere
a change takes one line.
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
    """Standard output for data: without markup, and with BrokenPipeError for the caller."""

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        """Rich would end the process with code 1."""
        raise BrokenPipeError


class Printer:
    """Shows changes one after another; `flush` at the end of a batch."""

    def __init__(self, *, as_json: bool, console: Console | None = None) -> None:
        self._as_json = as_json
        # Escape characters that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        self._console = console or Terminal()
        self._previous: Change | None = None

    def show(self, change: Change) -> None:
        """Write one change, after a header line if its transaction is new."""
        if self._as_json:
            sys.stdout.buffer.write(json_line(change).encode() + b"\n")
            return
        if not _together(self._previous, change):
            self._console.print(render_transaction(change))
        width = self._console.width if self._console.is_terminal else None
        self._console.print(render_text(change, width=width))
        self._previous = change

    def flush(self) -> None:
        """Write what is still buffered."""
        sys.stdout.flush()


def _together(previous: Change | None, change: Change) -> bool:
    return previous is not None and (previous.position.lsn, previous.xid) == (
        change.position.lsn,
        change.xid,
    )


def reader_gone() -> bool:
    """Whether standard output is a pipe without a reader.

    A write would fail, but `tailrace tail` on an idle log does not write.
    """
    poller = select.poll()
    poller.register(sys.stdout.fileno(), 0)
    return any(state & select.POLLERR for _, state in poller.poll(0))


def close_quietly() -> None:
    """After a broken pipe: discard the interpreter's last flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
