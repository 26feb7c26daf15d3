"""A program of the user's: the JSON document on its standard input, exit code 0 is success."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING

from tailrace import process
from tailrace.errors import AlertUndeliveredError

if TYPE_CHECKING:
    from tailrace.config.alerts import Command
    from tailrace.watch.message import Message

_POLL_S = 0.02


def run_program(command: Command, message: Message, *, timeout_s: float) -> None:
    """Run it. Its children are killed when it ends, and all of them if it takes too long."""
    with tempfile.TemporaryFile() as document:
        document.write(json.dumps(message.document(), ensure_ascii=False).encode())
        document.seek(0)
        try:
            running = subprocess.Popen(
                command.argv,
                stdin=document,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
        except OSError as error:
            raise AlertUndeliveredError(f"the program cannot be run: {error.strerror}") from None
    end = time.monotonic() + timeout_s
    while (code := process.ended(running)) is None:
        if time.monotonic() > end:
            process.kill(running)
            running.wait()
            raise AlertUndeliveredError(f"the program has not ended within {timeout_s:g} s")
        time.sleep(_POLL_S)
    if code:
        raise AlertUndeliveredError(f"the program ended with exit code {code}")
