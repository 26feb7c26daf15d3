"""What comes of an order: the state files of the supervisor and of the pipelines, step by step."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import ConfigError, ProcessError
from tailrace.observe.figures import PipelineFigures, ProcessFigures
from tailrace.run import status
from tailrace.run.applying import Applying
from tailrace.run.reloads import order_reload
from tailrace.run.status import PipelinesStatus, RunStatus
from tests.unit.run.test_plan import Site

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Story:
    """A run whose state files change while the command waits: a step at each pause."""

    def __init__(self, folder: Path) -> None:
        self.site = Site(folder)
        self.where = status.folder(self.site.data)
        self.steps: list[Callable[[], None]] = []
        self.now = 0.0
        self.processes(pipelines=1, serve=2, watch=3)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.steps:
            self.steps.pop(0)()

    def processes(self, *, failed: str = "", **pids: int) -> None:
        figures = {
            name: ProcessFigures(
                state="failed" if name == failed else "running",
                up=name != failed,
                pid=pid,
                code="BAD_CONFIG" if name == failed else "",
            )
            for name, pid in pids.items()
        }
        status.write(self.where, "run", RunStatus(processes=figures))

    def pipelines(self, state: str, code: str = "") -> None:
        figures = PipelineFigures(state=state, code=code, message="why" if code else "")
        report = PipelinesStatus(state="running", pipelines={"orders": figures})
        status.write(self.where, "pipelines", report)

    def apply(self, *steps: Callable[[], None]) -> tuple[list[str], Exception | None]:
        plan = self.site.change({"pipelines.orders.where": "after.id > 3"})
        applying = Applying(
            self.site.data, plan, timeout_s=60, clock=lambda: self.now, sleep=self.sleep
        )
        order = order_reload(self.site.data, plan, user="ann")
        self.steps = list(steps)
        lines: list[str] = []
        try:
            lines.extend(applying.follow(order))
        except (ConfigError, ProcessError) as error:
            return lines, error
        return lines, None


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Story:
    monkeypatch.setattr(status, "STALE_S", 3600.0)
    return Story(tmp_path)


HERE = os.getpid()
"""The process that writes the status files, which the pipelines' process has to be."""


def loads(story: Story) -> None:
    story.site.reloads.reload()


def test_it_waits_for_the_processes_and_the_pipelines(story: Story) -> None:
    """GIVEN an order WHEN the settings are loaded, processes restart, and a pipeline starts THEN
    each step is a line, and nothing of before counts."""
    story.pipelines("running")
    lines, error = story.apply(
        lambda: loads(story),
        lambda: story.processes(pipelines=1, serve=9, watch=9),
        lambda: story.processes(pipelines=HERE, serve=9, watch=9),
        lambda: story.pipelines("starting"),
        lambda: story.pipelines("running"),
    )
    assert error is None
    assert lines == [
        "The settings are loaded.",
        f"pipelines: restarted, process {HERE}",
        "serve: restarted, process 9",
        "watch: restarted, process 9",
        "pipeline orders: running",
    ]


def test_a_refusal_is_an_error(story: Story) -> None:
    def refuses() -> None:
        story.site.file.write_text("pipelines: 1\n")
        with pytest.raises(ConfigError):
            story.site.reloads.reload()

    lines, error = story.apply(refuses)
    assert lines == []
    assert isinstance(error, ConfigError)
    assert "pipelines: " in str(error)


def test_a_process_that_fails_is_an_error(story: Story) -> None:
    lines, error = story.apply(
        lambda: loads(story),
        lambda: story.processes(failed="pipelines", pipelines=8, serve=9, watch=9),
    )
    assert lines == ["The settings are loaded."]
    assert str(error) == "pipelines has failed: BAD_CONFIG"


def test_a_pipeline_that_fails_is_an_error(story: Story) -> None:
    lines, error = story.apply(
        lambda: loads(story),
        lambda: story.processes(pipelines=HERE, serve=9, watch=9),
        lambda: story.pipelines("failed", "BAD_EXPRESSION"),
    )
    assert lines[-1] == "pipeline orders: failed BAD_EXPRESSION why"
    assert isinstance(error, ProcessError)
    assert str(error) == "failed: orders"


def test_a_process_that_does_not_come_back(story: Story) -> None:
    lines, error = story.apply(lambda: loads(story))
    assert lines == ["The settings are loaded."]
    assert str(error) == "pipelines has not restarted within the given time"


def test_a_run_that_ends_meanwhile(story: Story) -> None:
    _, error = story.apply((story.where / "run.json").unlink)
    assert "does not run on the data folder" in str(error)
