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
    sections = {name: {"sink": sink, **section} for name, section in pipelines.items()}
    return config.Config.model_validate({"data": str(data), "pipelines": sections})


def test_pipelines_with_a_snapshots_section(tmp_path: Path) -> None:
    configured = settings(
        tmp_path, a={"snapshots": {}}, b={}, c={"snapshots": {"request": "other"}}
    )
    assert len(services(configured, lambda *_, **__: None)) == 2  # type: ignore[arg-type]


def test_two_pipelines_with_the_same_request_subject(tmp_path: Path) -> None:
    configured = settings(tmp_path, a={"snapshots": {}}, b={"snapshots": {}})
    with pytest.raises(ConfigError, match="pipelines a and b have the same"):
        services(configured, lambda *_, **__: None)  # type: ignore[arg-type]
