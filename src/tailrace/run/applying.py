"""What comes of an order to reload: the supervisor's answer, then the processes that restart.

Reads the state files only; it changes nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tailrace.errors import ConfigError, ProcessError
from tailrace.run import status
from tailrace.run.loaded import loaded_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tailrace.observe.figures import PipelineFigures, ProcessFigures
    from tailrace.run.loaded import Order
    from tailrace.run.plan import Plan

_POLL_S = 0.2
_UNFINISHED = ("", "starting")


def check_runs(data: Path) -> None:
    """Raise ConfigError unless `tailrace run` uses a data folder."""
    report = status.read(status.folder(data), "run", status.RunStatus)
    if report is None or not report.up:
        raise ConfigError(
            f"`tailrace run` does not run on the data folder {data}",
            hint="Start it: it reads the settings file. Or name its data folder with --data.",
        )


class Applying:
    """Follows one order. Create it before the order is given."""

    def __init__(
        self,
        data: Path,
        plan: Plan,
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._data = data
        self._plan = plan
        self._where = status.folder(data)
        self._clock, self._sleep = clock, sleep
        self._deadline = clock() + timeout_s
        self._before = {name: each.pid for name, each in self._processes().items()}

    def follow(self, order: Order) -> Iterator[str]:
        """What happens, as lines. Raises ConfigError if the order is refused, or ProcessError."""
        self._wait_for_answer(order)
        yield "The settings are loaded."
        for name in self._plan.processes:
            yield f"{name}: {self._wait_for_process(name)}"
        if "pipelines" in self._plan.processes:
            yield from self._pipelines()

    def _wait_for_answer(self, order: Order) -> None:
        file = loaded_file(self._data)
        while True:
            loaded = file.read_or(None)
            if loaded is not None and loaded.orders >= order.number:
                break
            check_runs(self._data)
            self._pause("`tailrace run` has not answered")
        if loaded.refusal:
            raise ConfigError(loaded.refusal, hint=loaded.hint)

    def _wait_for_process(self, name: str) -> str:
        while True:
            each = self._processes().get(name)
            if each is not None and each.pid != self._before.get(name):
                if each.state == "failed":
                    raise ProcessError(f"{name} has failed: {each.code or each.exit_code}")
                if each.up:
                    return f"restarted, process {each.pid}"
            self._pause(f"{name} has not restarted")

    def _pipelines(self) -> Iterator[str]:
        """The pipelines of the plan with the state that they have reached."""
        names = [
            each.name
            for each in self._plan.objects
            if each.kind == "pipeline" and each.action != "removed"
        ]
        failed = []
        for name in names:
            figures = self._wait_for_pipeline(name)
            words = (figures.state, figures.code, figures.message)
            yield f"pipeline {name}: {' '.join(filter(None, words))}"
            if figures.state == "failed":
                failed.append(name)
        if failed:
            raise ProcessError(
                f"failed: {', '.join(failed)}",
                hint="Correct the settings of the pipeline, and apply them. The others run.",
            )

    def _wait_for_pipeline(self, name: str) -> PipelineFigures:
        while True:
            report = status.read(self._where, "pipelines", status.PipelinesStatus)
            process = self._processes().get("pipelines")
            if report and process and report.up and report.pid == process.pid:
                figures = (report.status.pipelines or {}).get(name)
                if figures is not None and figures.state not in _UNFINISHED:
                    return figures
            self._pause(f"the pipeline {name} has not started")

    def _processes(self) -> dict[str, ProcessFigures]:
        report = status.read(self._where, "run", status.RunStatus)
        return (report.status.processes or {}) if report is not None else {}

    def _pause(self, what: str) -> None:
        if self._clock() > self._deadline:
            raise ProcessError(
                f"{what} within the given time",
                hint="Look at the log of `tailrace run`, or at its console.",
            )
        self._sleep(_POLL_S)
