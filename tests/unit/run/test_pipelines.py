"""The process of the pipelines: what starts when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace import config
from tailrace.log.format import mark
from tailrace.run import pipelines

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
