"""The supervisor: its rules over a fake launcher, then what needs real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import AlreadyRunningError, ConfigError, GapError
from tailrace.process import alive
from tailrace.run import status
from tailrace.run.child import Spec
from tailrace.run.status import RunStatus
from tailrace.run.supervisor import Supervisor
from tests.unit.run.launching import FakeLauncher
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.config.pinned import Pin
    from tailrace.observe.figures import ProcessFigures


def spec(name: str, *, worker: bool = True, stop_s: float = 10.0) -> Spec:
    return Spec(name=name, command=(name,), worker=worker, stop_s=stop_s, reloads=name != "capture")


class Simulation:
    """A supervisor over fake processes, with a clock that the test moves."""

    def __init__(self, folder: Path, *specs: Spec, stubborn: tuple[str, ...] = ()) -> None:
        self.where = status.folder(folder)
        status.clear(self.where)
        self.now = 1000.0
        self.settings_error: ConfigError | None = None
        self.launcher = FakeLauncher(*stubborn)
        self.order: frozenset[str] | None = None
        self.pin: Pin | None = None
        self.supervisor = Supervisor(
            specs, self.where, self.launcher, settings=self, started_at=5.0
        )

    def ordered(self) -> bool:
        return self.order is not None

    def reload(self) -> frozenset[str]:
        changed, self.order = self.order, None
        if self.settings_error is not None:
            raise self.settings_error
        return changed or frozenset()

    def tick(self, after_s: float = 0.0) -> bool:
        self.now += after_s
        return self.supervisor.tick(self.now)

    def exit(self, name: str, code: int) -> None:
        self.launcher.processes[name].code = code

    def state(self, name: str) -> str:
        return self.figures()[name].state

    def figures(self) -> dict[str, ProcessFigures]:
        return {child.spec.name: child.figures() for child in self.supervisor.children}

    def report(self) -> RunStatus:
        report = status.read(self.where, "run", RunStatus)
        assert report is not None
        return report.status

    @property
    def journal(self) -> list[str]:
        return self.launcher.journal


@pytest.fixture
def three(tmp_path: Path) -> Simulation:
    simulation = Simulation(
        tmp_path, spec("capture"), spec("pipelines"), spec("serve", worker=False)
    )
    assert simulation.tick()
    return simulation


def test_a_signal_stops_all_in_order(three: Simulation) -> None:
    three.supervisor.stop()
    assert not three.tick()
    assert three.supervisor.exit_code == 0
    assert three.journal == [
        "start capture",
        "start pipelines",
        "start serve",
        "terminate capture",
        "terminate pipelines",
        "terminate serve",
    ]
    assert three.report().state == "stopped"
    assert {figures.state for figures in (three.report().processes or {}).values()} == {"stopped"}


def test_the_next_process_stops_after_the_one_before_has_ended(tmp_path: Path) -> None:
    simulation = Simulation(tmp_path, spec("capture"), spec("serve"), stubborn=("capture",))
    simulation.tick()
    simulation.supervisor.stop()
    assert simulation.tick(1)
    assert simulation.tick(1)
    assert simulation.journal[-1] == "terminate capture"
    assert simulation.report().state == "stopping"
    simulation.exit("capture", 0)
    assert not simulation.tick(1)
    assert simulation.journal[-1] == "terminate serve"


def test_a_process_that_does_not_stop_in_time_is_killed(tmp_path: Path) -> None:
    capture = spec("capture", stop_s=5)
    simulation = Simulation(tmp_path, capture, spec("serve"), stubborn=("capture",))
    simulation.tick()
    simulation.supervisor.stop()
    assert simulation.tick()
    assert simulation.tick(4.9)
    assert "kill capture" not in simulation.journal
    assert simulation.tick(0.2)
    assert not simulation.tick()
    assert simulation.figures()["capture"].exit_code == -signal.SIGKILL
    assert simulation.figures()["serve"].exit_code == 0


def test_a_second_signal_kills(tmp_path: Path) -> None:
    capture = spec("capture", stop_s=600)
    simulation = Simulation(tmp_path, capture, stubborn=("capture",))
    simulation.tick()
    simulation.supervisor.stop()
    assert simulation.tick()
    simulation.supervisor.stop()
    assert simulation.tick()
    assert not simulation.tick()
    assert simulation.journal[-1] == "kill capture"
    assert simulation.supervisor.exit_code == 0


def test_a_process_that_dies_restarts_alone(three: Simulation) -> None:
    three.exit("capture", -signal.SIGKILL)
    three.tick()
    three.tick(1.1)
    assert three.journal.count("start capture") == 2
    assert {name: each.restarts for name, each in three.figures().items()} == {
        "capture": 1,
        "pipelines": 0,
        "serve": 0,
    }


def test_a_crash_is_retried_without_end(three: Simulation) -> None:
    for restarts in range(1, 50):
        three.exit("capture", 1)
        assert three.tick()
        assert three.tick(31)
        assert three.figures()["capture"].restarts == restarts


def test_the_others_continue_beside_a_final_state(three: Simulation) -> None:
    three.exit("capture", GapError.exit_code)
    for _ in range(3):
        assert three.tick(100)
    assert three.state("pipelines") == "running"
    shown = (three.report().processes or {})["capture"]
    assert (shown.state, shown.code, shown.exit_code, shown.restarts) == ("failed", "GAP", 10, 0)
    three.supervisor.stop()
    assert not three.tick()
    assert three.supervisor.exit_code == 0
    assert three.state("capture") == "failed"


def test_without_a_worker_the_exit_code_is_that_of_the_first_failure(three: Simulation) -> None:
    three.exit("pipelines", ConfigError.exit_code)
    assert three.tick()
    assert three.tick()
    three.exit("capture", 33)
    assert three.tick()
    assert not three.tick()
    assert three.supervisor.exit_code == ConfigError.exit_code
    assert three.journal[-1] == "terminate serve"


def test_a_worker_that_is_idle_without_a_failed_one_does_not_count(tmp_path: Path) -> None:
    idle = Spec(name="pipelines", command=("pipelines",), idle=lambda: True)
    simulation = Simulation(tmp_path, spec("capture"), idle)
    simulation.tick()
    simulation.exit("capture", GapError.exit_code)
    assert simulation.tick()
    assert not simulation.tick()
    assert simulation.supervisor.exit_code == GapError.exit_code
    assert simulation.journal[-1] == "terminate pipelines"


def test_a_worker_that_backs_off_counts(three: Simulation) -> None:
    three.exit("capture", GapError.exit_code)
    three.exit("pipelines", 1)
    assert three.tick()
    assert three.tick(0.5)
    assert three.tick(1)
    assert three.state("pipelines") == "running"


def test_a_reload_restarts_all_but_capture(tmp_path: Path) -> None:
    simulation = Simulation(
        tmp_path, spec("capture"), spec("pipelines"), spec("stubborn", stop_s=5), spec("failed"),
        stubborn=("stubborn",),
    )  # fmt: skip
    simulation.tick()
    simulation.exit("failed", GapError.exit_code)
    simulation.tick()
    before = {name: figures.pid for name, figures in simulation.figures().items()}
    simulation.supervisor.reload()
    simulation.tick()
    simulation.tick(5.1)
    simulation.tick()
    simulation.tick()
    after = {name: figures.pid for name, figures in simulation.figures().items()}
    assert after["capture"] == before["capture"]
    assert simulation.figures()["capture"].restarts == 0
    for name in ("pipelines", "stubborn", "failed"):
        assert after[name] not in (None, before[name])
        assert simulation.figures()[name].restarts == 1
    assert simulation.journal.count("terminate pipelines") == 1
    assert simulation.journal.count("kill stubborn") == 1


def test_an_order_restarts_what_reads_the_change_and_what_has_failed(tmp_path: Path) -> None:
    simulation = Simulation(
        tmp_path, spec("capture"), spec("pipelines"), spec("serve"), spec("failed")
    )
    simulation.tick()
    simulation.exit("failed", GapError.exit_code)
    simulation.tick()
    simulation.order = frozenset({"capture", "serve"})
    simulation.tick(1.1)
    simulation.tick()
    assert simulation.order is None
    assert simulation.journal[4:] == ["terminate serve", "start failed", "start serve"]


def test_an_order_is_looked_for_once_per_second(three: Simulation) -> None:
    three.order = frozenset({"serve"})
    three.tick(0.5)
    assert three.order is not None
    three.tick(0.6)
    assert three.order is None


def test_a_reload_with_invalid_settings_changes_nothing(
    three: Simulation, capsys: pytest.CaptureFixture[str]
) -> None:
    three.settings_error = ConfigError("the settings are wrong")
    three.supervisor.reload()
    three.tick()
    assert len(three.journal) == 3
    three.settings_error = None
    three.tick()
    assert len(three.journal) == 3
    three.supervisor.reload()
    three.tick()
    assert three.journal[3:5] == ["terminate pipelines", "terminate serve"]
    assert "the settings are wrong" in "".join(capsys.readouterr())


def test_the_status_file_is_written_once_per_second(three: Simulation) -> None:
    assert three.report().started_at == 5.0
    path = three.where / "run.json"
    path.unlink()
    three.tick(0.5)
    assert not path.exists()
    three.tick(0.6)
    assert three.report().state == "running"


SUPERVISE = """
import json, sys
from pathlib import Path
from tailrace.backoff import Backoff
from tailrace.run.child import Spec
from tailrace.run.supervisor import supervise
from tailrace.errors import ConfigError
from tailrace.observe import logs

class Settings:
    pin = None
    def ordered(self):
        return False
    def reload(self):
        if Path("wrong").exists():
            raise ConfigError("the settings are wrong")
        return ()

logs.configure("json")
specs = [
    Spec(name=name, command=(sys.executable, "-S", "-c", program, name), reloads=name != "capture")
    for name, program in json.loads(sys.argv[2])
]
backoff = lambda: Backoff(first_s=0.05, max_s=0.2, jitter=0.0)
sys.exit(supervise(specs, Path(sys.argv[1]), backoff=backoff, settings=Settings()))
"""
STAYS = """
import signal, sys, time
def stop(*_):
    with open("order", "a") as order: print(sys.argv[1], file=order)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
open(sys.argv[1] + ".up", "w").close()
while True: time.sleep(0.05)
"""
FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
with open("grandchild", "w") as file: file.write(str(child.pid))
open(sys.argv[1] + ".up", "w").close()
time.sleep(600)
"""


class Run:
    """A supervisor process in a folder of its own, with real processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "output"

    def start(self, **programs: str) -> subprocess.Popen[bytes]:
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                self.command(*programs.items()),
                cwd=self.folder,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )
        return self.process

    def command(self, *programs: tuple[str, str]) -> list[str]:
        data = str(self.folder / "data")
        return [sys.executable, "-c", SUPERVISE, data, json.dumps(programs)]

    def up(self, *names: str) -> None:
        wait_for(lambda: all((self.folder / f"{name}.up").exists() for name in names))

    def report(self) -> RunStatus:
        report = status.read(self.folder / "data" / "status", "run", RunStatus)
        return RunStatus() if report is None else report.status

    def pid(self, name: str) -> int | None:
        figures = (self.report().processes or {}).get(name)
        return figures.pid if figures else None

    def wait_for_pid(self, name: str) -> int:
        wait_for(lambda: self.pid(name))
        pid = self.pid(name)
        assert pid is not None
        return pid


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    started = Run(tmp_path)
    yield started
    if started.process.poll() is None:
        started.process.kill()
        started.process.wait()


def test_real_processes_restart_reload_and_stop(run: Run, tmp_path: Path) -> None:
    """GIVEN two processes WHEN one is killed, SIGHUP and SIGTERM come THEN each rule holds."""
    process = run.start(capture=STAYS, pipelines=STAYS)
    run.up("capture", "pipelines")
    capture, pipelines = run.wait_for_pid("capture"), run.wait_for_pid("pipelines")
    os.kill(capture, signal.SIGKILL)
    wait_for(lambda: run.pid("capture") not in (None, capture))
    assert '"exit": "SIGKILL"' in run.output.read_text()
    capture = run.wait_for_pid("capture")
    (run.folder / "wrong").touch()
    process.send_signal(signal.SIGHUP)
    wait_for(lambda: "the settings are wrong" in run.output.read_text())
    (run.folder / "wrong").unlink()
    (run.folder / "pipelines.up").unlink()
    process.send_signal(signal.SIGHUP)
    wait_for(lambda: run.pid("pipelines") not in (None, pipelines))
    run.up("pipelines")
    assert run.pid("capture") == capture
    second = subprocess.run(
        run.command(), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert AlreadyRunningError.__name__ in second.stderr
    assert (run.report().processes or {})["capture"].state == "running"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert (run.folder / "order").read_text().split() == ["pipelines", "capture", "pipelines"]
    assert run.report().state == "stopped"


def test_children_die_with_the_supervisor(run: Run) -> None:
    process = run.start(capture=STAYS)
    run.up("capture")
    child = run.wait_for_pid("capture")
    process.kill()
    process.wait()
    wait_for(lambda: not alive(child))


def test_the_children_of_a_dead_child_are_killed(run: Run) -> None:
    process = run.start(pipelines=FAMILY)
    run.up("pipelines")
    pid = run.wait_for_pid("pipelines")
    grandchild = int((run.folder / "grandchild").read_text())
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not _running(grandchild))
    process.terminate()
    assert process.wait(60) == 0


def _running(pid: int) -> bool:
    """Whether a process runs. An orphan may stay a zombie until its adopter reaps it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] != "Z"
