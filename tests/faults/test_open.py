"""Kills between the steps of an open batch: flush, record of its end, success of its task."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.load import Load
from tests.faults.path import System, sink
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.testing import EmbeddedNats
    from tests.fix_postgres import Database

pytestmark = pytest.mark.long

POINTS = ("open.after-flush", "open.before-record", "open.after-record")
SQL = {"where": "xid IS NOT NULL"}
KILLS = 3


@pytest.mark.parametrize(
    ("point", "stages"), [*((point, {}) for point in POINTS), *((point, SQL) for point in POINTS)]
)
def test_killed_between_the_steps(  # noqa: PLR0917 - fixtures
    victim_database: Database,
    server: EmbeddedNats,
    tmp_path: Path,
    seed: int,
    point: str,
    stages: dict[str, str],
) -> None:
    """A worker ends when it reaches the step for the second time, and so does the next one.

    A window of a second: reading back what was stored keeps messages from coming twice.
    """
    settings = {
        "max_open_s": 1,
        "sink": sink(server.url, "OPEN", stream={"duplicate_window_s": 1}),
        **stages,
    }
    variables = {"TAILRACE_FAILPOINTS": f"{point}=kill@2"}
    system = System(victim_database, tmp_path, {"open": settings}, env=variables)
    try:
        system.start()
        with Load(system.database, seed=seed):
            wait_for(
                lambda: system.progress("open").get("restarts", 0) >= KILLS,
                lambda: f"{KILLS} kills: {system.progress('open')}",
            )
        system.process.kill()
        variables.clear()
        system.start()
        system.settled()
        assert system.check() > 0
        wait_for(lambda: system.progress("open").get("open"), "an open batch")
        assert system.stop() == 0
    finally:
        system.kill()
