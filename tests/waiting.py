"""Waiting for what happens elsewhere, without waiting for ever."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def wait_for(condition: Callable[[], object], what: str = "", timeout_s: float = 120) -> None:
    """Until it holds; a test that waits too long fails and says for what."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"still waiting for {what or condition}"
        time.sleep(0.02)
