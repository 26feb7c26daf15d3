"""The rules of one supervised process, without processes and without waiting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import GapError, PostgresUnreachableError, StorageError
from tailrace.run.child import HEALTHY_S, Child, Spec, State, restart_backoff
from tests.unit.run.launching import FakeLauncher


class Run:
    """A child, its launcher, and a clock that the test moves."""

    def __init__(self, *, stubborn: bool = False, stop_s: float = 10.0) -> None:
        self.now = 1000.0
        self.launcher = FakeLauncher(*(["capture"] if stubborn else []))
        spec = Spec(name="capture", command=("capture",), stop_s=stop_s)
        self.child = Child(spec, self.launcher)

    def tick(self, after_s: float = 0.0) -> None:
        self.now += after_s
        self.child.tick(self.now)

    def exit(self, code: int, after_s: float = 0.0) -> None:
        self.now += after_s
        self.launcher.processes["capture"].code = code
        self.tick()

    def starts(self) -> int:
        return self.launcher.journal.count("start capture")


@pytest.fixture
def run() -> Run:
    started = Run()
    started.tick()
    return started


def test_a_process_starts_at_the_first_tick() -> None:
    run = Run()
    assert (run.child.state, run.child.up, run.starts()) == (State.WAITING, False, 0)
    run.tick()
    assert (run.child.state, run.child.up, run.starts()) == (State.RUNNING, True, 1)


def test_a_process_that_ends_restarts_at_once(run: Run) -> None:
    first = run.child.figures().pid
    run.exit(1)
    assert (run.child.state, run.child.up) == (State.BACKING_OFF, False)
    run.tick()
    assert (run.child.state, run.starts()) == (State.RUNNING, 2)
    figures = run.child.figures()
    assert (figures.restarts, figures.exit_code) == (1, 1)
    assert figures.pid not in (None, first)


def test_a_process_that_cannot_be_started() -> None:
    """GIVEN a machine without room for another process WHEN a process is due THEN it is started
    later, and the supervisor continues."""
    run = Run()
    run.launcher.failures = 2
    run.tick()
    assert (run.child.state, run.child.up) == (State.BACKING_OFF, False)
    run.tick()
    assert not run.child.up
    run.tick(1.0)
    assert (run.child.state, run.starts(), run.child.restarts) == (State.RUNNING, 1, 0)


def test_exit_codes_that_are_final_for_others_only() -> None:
    """The watchdog is started again on a disk that failed once: it has to report that."""
    launcher = FakeLauncher()
    spec = Spec(name="watch", command=("watch",), final=frozenset({2}))
    child = Child(spec, launcher)
    child.tick(0.0)
    launcher.processes["watch"].code = StorageError.exit_code
    child.tick(1.0)
    assert child.figures().state == "backing-off"
    child.tick(1.0)
    launcher.processes["watch"].code = 2
    child.tick(2.0)
    assert child.figures().state == "failed"


def test_reloads_do_not_extend_the_limit_of_a_stop() -> None:
    """GIVEN a process that ignores SIGTERM WHEN the settings are reloaded every few seconds THEN it
    is killed after its limit."""
    run = Run(stubborn=True)
    run.tick()
    for _ in range(4):
        run.child.reload(run.now)
        run.tick(3.0)
    assert "kill capture" in run.launcher.journal


def test_delays_double_up_to_30_seconds(run: Run) -> None:
    run.exit(-9)
    run.tick()
    for delay_s in (1, 2, 4, 8, 16, 30, 30):
        run.exit(-9)
        run.tick(delay_s - 0.01)
        assert not run.child.up
        run.tick(0.02)
        assert run.child.figures().state == "running"
    assert run.child.restarts == 8


@pytest.mark.parametrize(("ran_s", "delay_s"), [(HEALTHY_S, 0), (HEALTHY_S - 1, 4)])
def test_a_minute_of_health_resets_the_delay(run: Run, ran_s: float, delay_s: float) -> None:
    for _ in range(3):
        run.exit(1)
        run.tick(30)
    run.exit(1, after_s=ran_s)
    if delay_s:
        run.tick(delay_s - 0.01)
        assert run.child.figures().state == "backing-off"
    run.tick(0.02)
    assert run.child.figures().state == "running"


@given(st.integers(min_value=1, max_value=100))
def test_delays_grow_to_the_limit(failures: int) -> None:
    backoff = restart_backoff()
    delays = [backoff.next_s() for _ in range(failures + 2)]
    assert delays[0] == 0.0
    assert 1.0 <= delays[-2] <= 30.0
    assert delays[-1] == min(2 * delays[-2], 30.0)


def test_a_final_exit_code_is_not_restarted(run: Run) -> None:
    run.exit(GapError.exit_code)
    run.tick(1000)
    assert (run.child.state, run.starts()) == (State.FAILED, 1)
    figures = run.child.figures()
    assert (figures.state, figures.code, figures.exit_code) == ("failed", "GAP", 10)
    assert (figures.up, figures.pid, figures.restarts) == (False, None, 0)


def test_an_unreachable_server_is_not_final(run: Run) -> None:
    run.exit(PostgresUnreachableError.exit_code)
    assert run.child.state is State.BACKING_OFF
    assert run.child.figures().code == "UNREACHABLE"


def test_a_reload_restarts_at_once(run: Run) -> None:
    run.child.reload(run.now)
    run.tick()
    assert run.child.state is State.WAITING
    run.tick()
    assert run.launcher.journal == ["start capture", "terminate capture", "start capture"]
    assert run.child.restarts == 1


@pytest.mark.parametrize("code", [1, GapError.exit_code])
def test_a_reload_revives_a_process_that_is_down(run: Run, code: int) -> None:
    run.exit(code)
    run.child.reload(run.now)
    run.tick()
    assert (run.child.state, run.starts()) == (State.RUNNING, 2)


def test_a_reload_kills_a_process_that_does_not_stop() -> None:
    run = Run(stubborn=True, stop_s=5)
    run.tick()
    run.child.reload(run.now)
    run.tick(4.9)
    assert "kill capture" not in run.launcher.journal
    run.tick(0.2)
    run.tick()
    run.tick()
    assert run.launcher.journal[-3:] == ["terminate capture", "kill capture", "start capture"]


def test_a_stop(run: Run) -> None:
    run.child.terminate()
    assert run.child.stopped(force=False)
    assert run.child.stopped(force=False)
    assert (run.child.state, run.child.exit_code) == (State.STOPPED, 0)


def test_a_stop_by_force_kills_once() -> None:
    run = Run(stubborn=True)
    run.tick()
    run.child.terminate()
    assert not run.child.stopped(force=False)
    assert not run.child.stopped(force=True)
    assert run.child.stopped(force=True)
    assert run.launcher.journal.count("kill capture") == 1
    assert run.child.exit_code == -9


def test_a_failed_process_stays_failed_after_a_stop(run: Run) -> None:
    run.exit(GapError.exit_code)
    run.child.terminate()
    assert run.child.stopped(force=False)
    assert run.child.state is State.FAILED


def test_a_process_that_never_started_can_be_stopped() -> None:
    run = Run()
    assert run.child.stopped(force=False)
    assert run.child.state is State.STOPPED
