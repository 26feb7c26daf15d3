"""Kills between the steps of an open batch: flush, record of its end, success of its task."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.run import status
from tests.faults.load import Load
from tests.faults.path import System, sink
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.testing import EmbeddedNats
    from tests.fix_postgres import Database

pytestmark = pytest.mark.long

POINTS = ("open.after-flush", "open.before-record", "open.after-record")
STAGES = {"plain": {}, "sql": {"where": "xid IS NOT NULL"}}
KILLS = 2


@pytest.mark.timeout(600)
def test_killed_between_the_steps(
    victim_database: Database, server: EmbeddedNats, tmp_path: Path, seed: int
) -> None:
    """A worker ends when it reaches a step for the second time, and so does the next one.

    Two pipelines: one task reads and delivers, or the rows pass through SQL stages. A window of a
    second: reading back what was stored keeps messages from coming twice.
    """
    pipelines = {
        name: {
            "max_open_s": 1,
            "sink": sink(server.url, name.upper(), stream={"duplicate_window_s": 1}),
            **stages,
        }
        for name, stages in STAGES.items()
    }
    variables: dict[str, str] = {}
    system = System(victim_database, tmp_path, pipelines, env=variables)

    def progress(figure: str) -> list[Any]:
        return [system.progress(name).get(figure, 0) for name in pipelines]

    try:
        for number, point in enumerate(POINTS):
            variables["TAILRACE_FAILPOINTS"] = f"{point}=kill@2"
            system.start()
            with Load(system.database, seed=seed + number):
                wait_for(
                    lambda: min(progress("restarts")) >= KILLS,
                    lambda: f"{KILLS} kills at {point}: {progress('restarts')}",  # noqa: B023
                )
            system.process.kill()
            shutil.rmtree(status.folder(system.data))
        variables.clear()
        system.start()
        system.settled()
        assert system.check() > 0
        wait_for(lambda: all(progress("open")), "open batches")
        assert system.stop() == 0
    finally:
        system.kill()
