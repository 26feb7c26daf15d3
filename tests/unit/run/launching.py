"""A launcher without processes: the test decides when they end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class FakeProcess:
    """A process that ends when the test, SIGTERM or SIGKILL says so."""

    def __init__(self, name: str, pid: int, journal: list[str], *, stubborn: bool) -> None:
        self.name = name
        self.pid = pid
        self.code: int | None = None
        self._journal = journal
        self._stubborn = stubborn

    def exit_code(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self._journal.append(f"terminate {self.name}")
        if not self._stubborn:
            self.code = 0

    def kill(self) -> None:
        self._journal.append(f"kill {self.name}")
        self.code = -9


class FakeLauncher:
    """Notes every start; `processes` are the last ones, by name."""

    def __init__(self, *stubborn: str) -> None:
        self.journal: list[str] = []
        self.failures = 0
        """How many of the next starts fail."""
        self.processes: dict[str, FakeProcess] = {}
        self._stubborn = stubborn
        self._pid = 100

    def start(self, command: Sequence[str]) -> FakeProcess:
        [name] = command
        if self.failures:
            self.failures -= 1
            raise BlockingIOError("Resource temporarily unavailable")
        self._pid += 1
        self.journal.append(f"start {name}")
        stubborn = name in self._stubborn
        process = FakeProcess(name, self._pid, self.journal, stubborn=stubborn)
        self.processes[name] = process
        return process
