"""Which pipelines serve requests for snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tailrace import config
from tailrace.errors import ConfigError
from tailrace.snapshot.service.service import services

if TYPE_CHECKING:
    from pathlib import Path


def settings(data: Path, **pipelines: dict[str, Any]) -> config.Config:
    sink = {"type": "nats", "url": "nats://127.0.0.1:1"}
    made = {name: {"sink": sink, **given} for name, given in pipelines.items()}
    return config.Config.model_validate({"data": str(data), "pipelines": made})


def test_those_that_say_so(tmp_path: Path) -> None:
    given = settings(tmp_path, a={"snapshots": {}}, b={}, c={"snapshots": {"request": "other"}})
    assert len(services(given, lambda *_, **__: None)) == 2  # type: ignore[arg-type]


def test_two_that_would_answer_the_same_request(tmp_path: Path) -> None:
    given = settings(tmp_path, a={"snapshots": {}}, b={"snapshots": {}})
    with pytest.raises(ConfigError, match="pipelines a and b have the same"):
        services(given, lambda *_, **__: None)  # type: ignore[arg-type]
