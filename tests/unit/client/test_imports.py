"""The client imports without the libraries of PostgreSQL and Spark."""

from __future__ import annotations

from tests.imports import loaded


def test_import_needs_neither_spark_nor_postgres() -> None:
    assert loaded("tailrace.client", "pyarrow", "psycopg", "pyspark", "pydantic") == []
