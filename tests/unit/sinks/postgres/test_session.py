"""Passwords over connections without encryption. Nothing is connected."""

from __future__ import annotations

import pytest

from tailrace.errors import SinkRefusedError
from tailrace.sinks.postgres.session import _dsn
from tailrace.sinks.postgres.settings import PostgresSink


def dsn(text: str, password: str = "") -> str:
    return _dsn(
        PostgresSink.model_validate({"type": "postgres", "dsn": text, "password": password})
    )


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGPASSWORD", "PGSSLMODE", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "text",
    [
        "host=db.example password=x",
        "postgresql://ann:x@db.example/shop",
        "host=db.example password=x sslmode=prefer",
        "host=localhost,db.example password=x",
        "host=localhost hostaddr=10.0.0.7 password=x",
    ],
)
def test_a_password_needs_encryption(text: str) -> None:
    with pytest.raises(SinkRefusedError, match="unencrypted"):
        dsn(text)


@pytest.mark.parametrize(
    "text",
    [
        "host=db.example",
        "host=db.example password=x sslmode=require",
        "postgresql://ann:x@db.example/shop?sslmode=verify-full",
        "host=localhost password=x",
        "hostaddr=127.0.0.1 password=x",
        "host=/run/postgresql password=x",
        "dbname=shop password=x",
    ],
)
def test_other_connections_are_allowed(text: str) -> None:
    assert dsn(text)


def test_variables_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db.example")
    with pytest.raises(SinkRefusedError, match="unencrypted"):
        dsn("dbname=shop", "x")
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    assert "password=x" in dsn("dbname=shop", "x")
