"""The watchdog of a machine that follows a leader: it has no source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import yaml

from tailrace.testing.process import free_port
from tailrace.testing.receiver import HttpReceiver
from tests import http
from tests.faults.path import Supervisor
from tests.integration.watch.system import alerts, wait_for_message
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path


def test_a_follower_without_a_leader(tmp_path: Path) -> None:
    """GIVEN `tailrace follow` with alerts WHEN no leader connects THEN the webhook learns it, and
    nothing is said about a source."""
    port, file = free_port(), tmp_path / "tailrace.yml"
    with HttpReceiver() as receiver:
        settings = {
            "source": {"dsn": "host=127.0.0.1 port=1"},
            "log": {"path": str(tmp_path / "data" / "log")},
            "data": str(tmp_path / "data"),
            "http": {"port": port},
            "replication": {"listen": f"127.0.0.1:{free_port()}"},
            "alerts": alerts(receiver),
        }
        file.write_text(yaml.safe_dump(settings))
        with Supervisor("follow", "-c", file, folder=tmp_path) as follower:
            follower.start()
            wait_for_message(receiver, "firing", check="leader")
            # The watchdog may be faster than the HTTP process.
            names = wait_for(lambda: _checks(port), "the endpoints to answer")
            assert {"process", "hang", "disk", "leader"} <= names
            assert "source" not in names
            assert follower.stop() == 0


def _checks(port: int) -> set[str]:
    """The names of the checks; empty while nothing answers."""
    try:
        document = http.get(f"http://127.0.0.1:{port}/health/checks").json()
    except httpx.TransportError:
        return set()
    return {each["check"] for each in document["checks"]}
