"""Child processes, and those that other processes have written down."""

from __future__ import annotations

import os
import time

from tailrace.process import alive


def test_the_id_of_a_process_that_started_later() -> None:
    """GIVEN a file from before the machine was restarted THEN the process that has the id by now
    has not written it."""
    assert alive(os.getpid())
    assert alive(os.getpid(), wrote_at=time.time())
    assert not alive(os.getpid(), wrote_at=0.0)
    assert not alive(2**22 + 1, wrote_at=time.time())
