"""`tailrace alert test | ls` and `tailrace health`, without a running system."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tailrace.testing.process import free_port
from tailrace.testing.receiver import HttpReceiver
from tailrace.watch import store
from tests.command import call
from tests.unit.watch.test_store import ALERT, written

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with HttpReceiver() as running:
        yield running


@pytest.fixture
def file(tmp_path: Path, receiver: HttpReceiver) -> Path:
    return settings(
        tmp_path,
        {
            "works": {"webhook": {"url": f"{receiver.url}/s3cret"}, "severity": "error"},
            "fails": {"slack": {"url": f"http://127.0.0.1:{free_port()}/s3cret"}},
        },
    )


def settings(folder: Path, channels: dict[str, Any]) -> Path:
    file = folder / "tailrace.yml"
    file.write_text(
        yaml.safe_dump(
            {"data": str(folder / "data"), "alerts": {"channels": channels}}, sort_keys=False
        )
    )
    return file


def test_a_test_says_what_happened(file: Path, receiver: HttpReceiver) -> None:
    """GIVEN a channel that works and one that does not THEN the first has got a message, whatever
    its severity is, and the output names both without their addresses."""
    result = call("alert", "test", "-c", file)
    assert result.returncode == 19
    assert result.stdout.splitlines() == [
        "works: accepted",
        "fails: the receiver cannot be reached: Connection refused",
    ]
    assert "ALERT_UNDELIVERED: not delivered: fails" in result.stderr
    assert "s3cret" not in result.stdout + result.stderr
    [request] = receiver.requests
    assert json.loads(request.body)["kind"] == "test"


def test_one_channel_is_tested(file: Path) -> None:
    result = call("alert", "test", "works", "-c", file)
    assert (result.returncode, result.stdout) == (0, "works: accepted\n")


def test_unknown_channels(file: Path, tmp_path: Path) -> None:
    result = call("alert", "test", "other", "-c", file)
    assert result.returncode == 2
    assert "channels: works, fails" in result.stderr
    result = call("alert", "test", "-c", settings(tmp_path, {}))
    assert result.returncode == 2
    assert "no channels" in result.stderr


def test_alerts_are_listed(file: Path, tmp_path: Path) -> None:
    resolved = replace(ALERT, id="a2", resolved_at=3.0)
    written(store.path_of(tmp_path / "data"), [store.alert(ALERT), store.alert(resolved)])
    result = call("alert", "ls", "-c", file)
    assert "the watchdog does not run (down)" in result.stdout
    assert "firing     error    disk log" in result.stdout
    assert "recovered  error    disk log" in result.stdout
    shown = json.loads(call("alert", "ls", "--json", "-c", file).stdout)
    assert [each["id"] for each in shown["recovered"]] == ["a2"]
    assert [each["id"] for each in shown["alerts"]] == ["a1"]


def test_no_alerts(file: Path) -> None:
    assert call("alert", "ls", "-c", file).stdout.endswith("no alerts\n")


def test_health_without_a_watchdog(file: Path) -> None:
    result = call("health", "-c", file)
    assert result.returncode == 1
    assert "down: 0 of 0 checks healthy" in result.stdout
