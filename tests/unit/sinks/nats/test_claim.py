"""Claims in a stream's metadata: whose messages a stream holds."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.jetstream.claim import Claim, key_of
from tailrace.sinks.contract import Lane
from tailrace.sinks.nats.claim import shared

LANE = Lane(pipeline="bridge", slot="one", history="a")


def info(**metadata: str) -> dict[str, Any]:
    """A stream with claims by owner."""
    claims = {key_of(owner.replace("__", ".")): text for owner, text in metadata.items()}
    return {"config": {"name": "CDC", "metadata": {"tailrace.pipeline": "bridge"} | claims}}


def test_a_claim_is_read_as_it_was_written() -> None:
    claim = Claim("a+1", 12, 1794743604, "cdc.shop.>")
    assert Claim.parse(str(claim)) == claim


def test_a_claim_without_subjects_is_of_all() -> None:
    assert Claim.parse("a 12 0").subjects == ">"


@pytest.mark.parametrize(
    ("claims", "subjects", "expected"),
    [
        ({}, ">", False),
        ({"one__bridge": "a 0 0 >"}, ">", False),
        ({"one__bridge": "a 0 0 >", "two__bridge": "b 0 0 >"}, ">", True),
        ({"two__bridge": "b 0 0"}, ">", True),
        ({"two__creek": "b 0 0 ns.shop.>"}, "ns.store.>", False),
        ({"two__creek": "b 0 0 ns.shop.>"}, "ns.*.orders", True),
    ],
)
def test_a_stream_is_shared_if_subjects_overlap(
    claims: dict[str, str], subjects: str, expected: bool
) -> None:
    assert shared(info(**claims), LANE, subjects) is expected


def test_a_stream_without_metadata_is_not_shared() -> None:
    assert not shared({"config": {"name": "CDC"}}, LANE, ">")
