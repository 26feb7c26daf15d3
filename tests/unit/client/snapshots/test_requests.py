"""Requests for a snapshot: repeated, failed, superseded and unanswered ones."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.client.names import Table
from tailrace.client.snapshots import requests
from tailrace.client.snapshots.requests import MAX_SNAPSHOTS, REPEAT_S, SnapshotRequests
from tailrace.errors import ConfigError, SinkRefusedError, SinkUnreachableError

UNREACHABLE = SinkUnreachableError("no pipeline answers snapshot requests")


def metadata(snapshot_id: str, supersedes: str | None = None) -> dict[str, Any]:
    return {
        "snapshot_id": snapshot_id, "lsn": "0/10", "visibility": "1:1:", "timestamp": 0,
        "since": None, "batch_count": 1, "row_count": 1, "supersedes": supersedes,
    }  # fmt: skip


class Service(SnapshotRequests):
    """A service by script. Times are seconds after the first request."""

    def __init__(self, answers: dict[float, Any], stream: dict[float, dict[str, Any]]) -> None:
        super().__init__(SimpleNamespace(), Table("public", "users"), clock=self.time)  # type: ignore[arg-type]
        self.now = 0.0
        self.requested_at: list[float] = []
        self._answers = answers
        self._stream = stream

    def time(self) -> float:
        return self.now

    async def sleep(self, delay_s: float) -> None:
        self.now += delay_s
        assert self.now < 10_000

    async def request(self) -> str:
        self.requested_at.append(self.now)
        answer = [self._answers[at] for at in sorted(self._answers) if at <= self.now][-1]
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    async def last_meta(self) -> tuple[int, dict[str, Any]] | None:
        stored = [at for at in sorted(self._stream) if at <= self.now]
        return (len(stored), self._stream[stored[-1]]) if stored else None


def complete(service: Service, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(requests, "asyncio", SimpleNamespace(sleep=service.sleep))
    return asyncio.run(service.complete())


def test_complete_returns_the_metadata_after_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service({0: "new"}, {-1: metadata("old"), 3: metadata("new")})
    assert complete(service, monkeypatch).snapshot_id == "new"
    assert service.requested_at == [0]


def test_request_is_repeated_until_the_snapshot_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Service({0: "new"}, {2.5 * REPEAT_S: metadata("new")})
    assert complete(service, monkeypatch).snapshot_id == "new"
    assert service.requested_at == [0, REPEAT_S, 2 * REPEAT_S]
    assert service.ids == ["new"]


def test_metadata_of_another_snapshot_after_the_request_are_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Service({0: "new"}, {3: metadata("other")})
    assert complete(service, monkeypatch).snapshot_id == "other"


def test_failure_of_the_requested_snapshot_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = {"snapshot_id": "new", "error": "no rights", "hint": "GRANT", "code": "REFUSED"}
    with pytest.raises(SinkRefusedError, match="no rights") as caught:
        complete(Service({0: "new"}, {3: failure}), monkeypatch)
    assert caught.value.hint == "GRANT"
    with pytest.raises(ConfigError):
        complete(Service({0: "new"}, {3: failure | {"code": "BAD_CONFIG"}}), monkeypatch)


def test_failure_of_another_snapshot_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = {"snapshot_id": "other", "error": "no rights"}
    service = Service({0: "new"}, {3: failure, 6: metadata("new")})
    assert complete(service, monkeypatch).snapshot_id == "new"


def test_superseded_snapshot_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service({0: "new"}, {3: metadata("other", supersedes="new")})
    with caplog.at_level(logging.WARNING, "tailrace.client"):
        complete(service, monkeypatch)
    assert caplog.messages == [
        "snapshot.superseded table=users snapshot_id=new replaced_by=other",
    ]


def test_too_many_failed_snapshots_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {number * REPEAT_S: f"snap-{number}" for number in range(MAX_SNAPSHOTS + 1)}
    with pytest.raises(SinkRefusedError, match="snap-0, snap-1, snap-2"):
        complete(Service(answers, {}), monkeypatch)


def test_restarting_service_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service({0: "new", 10: UNREACHABLE, 70: "new"}, {100: metadata("new")})
    assert complete(service, monkeypatch).snapshot_id == "new"


def test_service_that_stays_away_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service({0: "new", 10: UNREACHABLE}, {})
    with pytest.raises(SinkUnreachableError):
        complete(service, monkeypatch)
    assert 120 < service.now < 180


def test_service_that_is_not_there_at_all_is_an_error_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Service({0: UNREACHABLE}, {})
    with pytest.raises(SinkUnreachableError):
        complete(service, monkeypatch)
    assert service.now == 0
