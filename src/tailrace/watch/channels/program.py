"""A program of the user's: the JSON document on its standard input, exit code 0 is success."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING

from tailrace.errors import AlertUndeliveredError

if TYPE_CHECKING:
    from tailrace.config.alerts import Command
    from tailrace.watch.message import Message


def run_program(command: Command, message: Message, *, timeout_s: float) -> None:
    """Run it. It is killed, with its children, if it takes too long."""
    body = json.dumps(message.document(), ensure_ascii=False).encode()
    try:
        running = subprocess.Popen(
            command.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
    except OSError as error:
        raise AlertUndeliveredError(f"the program cannot be run: {error.strerror}") from None
    with running:
        try:
            running.communicate(body, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise AlertUndeliveredError(
                f"the program has not ended within {timeout_s:g} s"
            ) from None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(running.pid, signal.SIGKILL)
    if running.returncode:
        raise AlertUndeliveredError(f"the program ended with exit code {running.returncode}")
