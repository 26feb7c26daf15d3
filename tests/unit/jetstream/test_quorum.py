"""A replicated stream is read back only while its leader has a quorum."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.errors import SinkUnreachableError
from tailrace.jetstream import quorum
from tailrace.jetstream.quorum import await_quorum, unsettled

SECOND = 10**9


def info(*active_s: float, leader: str | None = "n0", since: str = "10:00:00") -> dict[str, Any]:
    """A stream of three, with the seconds since each follower has answered; it is 10:01:00."""
    followers = [
        {"name": f"n{number}", "current": active < 10, "active": int(active * SECOND)}
        for number, active in enumerate(active_s, 1)
    ]
    return {
        "config": {"name": "CDC", "num_replicas": 3},
        "ts": "2026-11-16T10:01:00.123456789Z",
        "cluster": {
            "leader": leader,
            "leader_since": f"2026-11-16T{since}.123456789Z",
            "replicas": followers,
        },
    }


@pytest.mark.parametrize("active_s", [(0.1, 1.0), (0.1, 60.0)])
def test_most_replicas_answer(active_s: tuple[float, float]) -> None:
    assert unsettled(info(*active_s)) is None


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (info(4.0, 4.0), "no quorum: 1 of 3"),
        (info(60.0, 60.0), "no quorum: 1 of 3"),
        (info(0.1, 0.1, 0.1, leader=None), "no leader"),
        (info(0.1, 0.1, since="10:00:59"), "elected n0 just now"),
    ],
)
def test_the_state_may_change(found: dict[str, Any], reason: str) -> None:
    assert reason in str(unsettled(found))


def test_servers_that_do_not_say_since_when_they_lead() -> None:
    found = info(0.1, 0.1)
    del found["cluster"]["leader_since"]
    assert unsettled(found) is None


def test_a_stream_with_one_replica_has_its_quorum() -> None:
    assert unsettled({"config": {"name": "CDC", "num_replicas": 1}}) is None
    assert unsettled({"config": {"name": "CDC"}, "cluster": {"leader": "n0"}}) is None


class Line:
    """A connection that describes the stream, one description after another."""

    def __init__(self, *found: dict[str, Any]) -> None:
        self._found = list(found)

    def request(self, _subject: str, _body: object = None) -> dict[str, Any]:
        return self._found.pop(0) if len(self._found) > 1 else self._found[0]


def test_an_election_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum, "_POLL_S", 0.001)
    line = Line(info(4.0, 4.0), info(leader=None), info(0.1, 0.1))
    found = await_quorum(line, info(4.0, 4.0), timeout_s=60)  # type: ignore[arg-type]
    assert found == info(0.1, 0.1)


def test_a_lost_quorum_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum, "_POLL_S", 0.001)
    line = Line(info(60.0, 60.0))
    with pytest.raises(SinkUnreachableError, match="stream CDC has no quorum"):
        await_quorum(line, info(60.0, 60.0), timeout_s=0.01)  # type: ignore[arg-type]
