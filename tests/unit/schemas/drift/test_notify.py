"""The message that consumers of a bridge get."""

from __future__ import annotations

from tailrace.schemas.drift.notify import message
from tailrace.schemas.drift.record import RecordedDrift


def test_the_fields_of_the_message() -> None:
    drift = RecordedDrift(
        id="x", kind="column-retyped", namespace="sales", table="t", relation_id=7, subject="n",
        detail="integer → text", hint="", lsn="0/10", found_at="2026-01-01T00:00:00+00:00",
        pipelines={"one": "flag"}, waiting=["one"],
    )  # fmt: skip
    assert message(drift, "flag") == {
        "table": "t",
        "schema": "sales.t",
        "timestamp": 1767225600,
        "kind": "column-retyped",
        "subject": "n",
        "detail": "integer → text",
        "lsn": "0/10",
        "relation_id": 7,
        "policy": "flag",
    }
