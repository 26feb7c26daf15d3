"""What a reading process of Spark loads: every query starts one."""

from __future__ import annotations

from tests.imports import loaded


def test_reading_the_log_needs_no_client_of_postgresql() -> None:
    others = ("psycopg", "pydantic", "nats", "confluent_kafka")
    assert loaded("tailrace.pipeline.source.stream", *others) == []
