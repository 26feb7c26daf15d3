from __future__ import annotations

from typing import Any

import pytest

from tailrace.client import State, StreamIdentity
from tailrace.errors import DivergedError, PositionLostError


def identity(claim: str = "", created: str = "2026", first_seq: int = 1) -> StreamIdentity:
    metadata = {"tailrace.history.shop": claim, "owner": "ops"} if claim else None
    config = {"name": "CDC", "metadata": metadata}
    return StreamIdentity({"created": created, "config": config, "state": {"first_seq": first_seq}})


def state(**more: Any) -> State:
    fields: dict[str, Any] = {
        "table": "users", "snapshot_id": "s", "lsn": "0/1", "visibility": "1:1:", "since": None,
        "stream": "2026", "sequence": 0,
    }  # fmt: skip
    return State(**fields | more)


@pytest.mark.parametrize(
    ("claim", "stored"),
    [
        ("", {}),
        ("", {"pipeline": "shop"}),
        ("aa 0 0", {"pipeline": "shop", "history": "aa"}),
        # The pipeline began to deliver after the snapshot.
        ("aa 0 0", {"pipeline": "shop"}),
        # A state of an earlier version, or a snapshot of another producer.
        ("aa 0 0", {}),
        # Another pipeline of the same stream.
        ("aa 0 0", {"pipeline": "billing", "history": "cc"}),
    ],
)
def test_a_copy_continues(claim: str, stored: dict[str, str]) -> None:
    identity(claim).check(state(**stored))


def test_a_stream_that_was_created_again_has_lost_the_position() -> None:
    with pytest.raises(PositionLostError, match="created again"):
        identity(created="2027").check(state())


@pytest.mark.parametrize("history", ["aa", ""])
def test_a_replaced_history_has_diverged(history: str) -> None:
    with pytest.raises(DivergedError, match="another history"):
        identity("bb 7 1794743604").check(state(pipeline="shop", history=history))


def test_history_of_a_pipeline() -> None:
    assert identity("aa 0 0").history("shop") == "aa"
    assert identity().history("shop") == ""


@pytest.mark.parametrize(
    ("claim", "first_seq", "earlier"),
    [("", 1, 0), ("aa 0 0", 1, 0), ("bb 7 1794743604", 1, 7), ("bb 7 1794743604", 8, 0)],
)
def test_messages_of_an_earlier_history(claim: str, first_seq: int, earlier: int) -> None:
    assert identity(claim, first_seq=first_seq).earlier("shop") == earlier
    assert identity(claim, first_seq=first_seq).earlier("billing") == 0
