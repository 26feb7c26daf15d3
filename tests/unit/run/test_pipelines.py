"""The process of the pipelines: what starts when."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from tailrace import config
from tailrace.errors import AlreadyRunningError
from tailrace.log.format import mark
from tailrace.run import pipelines, status
from tailrace.run.lock import data_folder_lock

if TYPE_CHECKING:
    from pathlib import Path


class _Idle:
    """An application without Spark."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def progress(self) -> dict[str, Any]:
        return {}

    def publish(self, *_: object) -> Any: ...


def test_services_start_after_capture_has_created_the_log(tmp_path: Path) -> None:
    """A backfill that finds no log would fail."""
    folder = tmp_path / "log"
    values = {
        "log": {"path": str(folder)},
        "data": str(tmp_path / "data"),
        "pipelines": {"p": {"sink": {"type": "nats", "subject": "p.{table}"}}},
    }
    work = pipelines._Work(config.Config.model_validate(values))
    work.start(_Idle())  # type: ignore[arg-type]
    assert work._services == []
    folder.mkdir()
    (folder / mark.NAME).touch()
    work.start_services()
    started = work._services
    assert len(started) == 1
    work.start_services()
    assert work._services is started
    work.stop()


def test_a_second_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would write the checkpoints of the first one. It is refused before Spark starts."""
    spark = Mock()
    spark.Application.side_effect = AssertionError("Spark starts")
    monkeypatch.setitem(sys.modules, "tailrace.pipeline.application", spark)
    settings = config.Config.model_validate({"data": str(tmp_path)})
    with (
        data_folder_lock(status.folder(tmp_path), "pipelines"),
        pytest.raises(AlreadyRunningError, match="`tailrace pipelines` already uses") as caught,
    ):
        pipelines.run_pipelines(settings)
    assert caught.value.code == "ALREADY_RUNNING"
