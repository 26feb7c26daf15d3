"""Resets while no pipeline runs: the way out of DIVERGED (`tailrace.pipeline.reset`)."""

from __future__ import annotations

import getpass
import socket
from typing import TYPE_CHECKING

from tailrace.pipeline import reset
from tailrace.run import status
from tailrace.run.lock import data_folder_lock

if TYPE_CHECKING:
    from datetime import datetime

    from tailrace.config import Config
    from tailrace.pipeline.reset import Plan, ResetEntry


def carry_out(config: Config, planned: Plan, *, now: datetime) -> ResetEntry:
    """Reset a pipeline. Raises AlreadyRunningError while pipelines run on the data folder."""
    user = f"{getpass.getuser()}@{socket.gethostname()}"
    with data_folder_lock(status.folder(config.data), "pipelines"):
        return reset.carry_out(config, planned, by=user, now=now)
