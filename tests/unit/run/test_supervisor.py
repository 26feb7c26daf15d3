"""The supervisor against real processes: small Python programs that do as they are told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import AlreadyRunningError, ConfigError, GapError
from tailrace.process import alive
from tailrace.run import status
from tailrace.run.supervisor import FINAL, Pace, named
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

SUPERVISE = """
import json, sys
from pathlib import Path
from tailrace.run.supervisor import Pace, Spec, supervise
from tailrace.errors import ConfigError
from tailrace.observe import logs

def check():
    if Path("wrong").exists():
        raise ConfigError("the settings are wrong")

logs.configure("json")
specs = [
    Spec(
        name=name,
        command=(sys.executable, "-c", program, name),
        worker=worker,
        stop_s=stop_s,
        reloads=name != "capture",
        ready=lambda ready=ready: ready is None or Path(ready).exists(),
    )
    for name, program, worker, stop_s, ready in json.loads(sys.argv[2])
]
pace = Pace(first_s=0.05, limit_s=0.2, healthy_s=60)
sys.exit(supervise(specs, Path(sys.argv[1]), pace=pace, check=check))
"""
STAYS = """
import signal, sys, time
from pathlib import Path
def stop(*_):
    with open("order", "a") as order: print(sys.argv[1], file=order)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
Path(sys.argv[1] + ".up").touch()
while True: time.sleep(0.05)
"""
STUBBORN = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(sys.argv[1] + ".up").touch()
while True: time.sleep(0.05)
"""
FAMILY = """
import subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Path("grandchild").write_text(str(child.pid))
Path(sys.argv[1] + ".up").touch()
time.sleep(600)
"""


def exits(code: int) -> str:
    return f"import sys; sys.exit({code})"


class Run:
    """A supervisor process in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "output"

    def start(self, *specs: tuple[str, str, dict[str, Any]]) -> subprocess.Popen[bytes]:
        listed = [
            (
                name,
                program,
                more.get("worker", True),
                more.get("stop_s", 10),
                more.get("ready"),
            )
            for name, program, more in specs
        ]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SUPERVISE, str(self.folder / "data"), json.dumps(listed)],
                cwd=self.folder,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )
        return self.process

    def up(self, *names: str) -> None:
        wait_for(lambda: all((self.folder / f"{name}.up").exists() for name in names))

    def told(self) -> dict[str, Any]:
        report = status.read(self.folder / "data" / "status", "run")
        return {} if report is None else dict(report.fields)

    def state(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.told().get("processes", {}).get(name, {})
        return found


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    if made.process.poll() is None:
        made.process.kill()
        made.process.wait()


def test_a_signal_stops_all_in_order(run: Run) -> None:
    process = run.start(("capture", STAYS, {}), ("pipelines", STAYS, {}), ("serve", STAYS, {}))
    run.up("capture", "pipelines", "serve")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert (run.folder / "order").read_text().split() == ["capture", "pipelines", "serve"]
    assert run.told()["state"] == "stopped"
    assert run.state("capture")["state"] == "stopped"


def test_what_dies_comes_back(run: Run) -> None:
    process = run.start(("capture", STAYS, {}), ("serve", STAYS, {"worker": False}))
    run.up("capture")
    wait_for(lambda: run.state("capture").get("pid"))
    first = run.state("capture")["pid"]
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: run.state("capture")["restarts"] == 1 and run.state("capture")["pid"])
    assert run.state("capture")["pid"] != first
    assert run.state("serve")["restarts"] == 0
    process.terminate()
    assert process.wait(60) == 0
    assert "SIGKILL" in run.output.read_text()


def test_the_settings_are_read_again(run: Run) -> None:
    """GIVEN all at work WHEN SIGHUP comes THEN all but capture start anew, if nothing is wrong."""
    process = run.start(
        ("capture", STAYS, {}),
        ("pipelines", STAYS, {}),
        ("stubborn", STUBBORN, {"stop_s": 0.2}),
        ("failed", exits(GapError.exit_code), {}),
    )
    run.up("capture", "pipelines", "stubborn")
    wait_for(lambda: run.state("failed").get("state") == "failed" and run.state("stubborn")["pid"])
    before = {name: run.state(name)["pid"] for name in ("capture", "pipelines", "stubborn")}
    (run.folder / "wrong").touch()
    process.send_signal(signal.SIGHUP)
    wait_for(lambda: "the settings are wrong" in run.output.read_text())
    (run.folder / "wrong").unlink()
    process.send_signal(signal.SIGHUP)
    wait_for(lambda: run.state("pipelines")["pid"] not in (None, before["pipelines"]))
    wait_for(lambda: run.state("stubborn")["pid"] not in (None, before["stubborn"]))
    assert run.state("capture") == run.state("capture") | {"pid": before["capture"], "restarts": 0}
    wait_for(lambda: run.state("failed")["restarts"] == 1)
    assert (run.folder / "order").read_text().split() == ["pipelines"]
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_a_crash_is_tried_again_and_again(run: Run) -> None:
    process = run.start(("capture", exits(1), {}))
    wait_for(lambda: run.state("capture").get("restarts", 0) >= 3)
    process.terminate()
    assert process.wait(60) == 0


def test_a_final_state_stays_down_and_the_others_go_on(run: Run) -> None:
    process = run.start(("capture", exits(GapError.exit_code), {}), ("pipelines", STAYS, {}))
    run.up("pipelines")
    wait_for(lambda: run.state("capture").get("state") == "failed")
    shown = run.state("capture")
    assert (shown["code"], shown["exit_code"], shown["restarts"]) == ("GAP", 10, 0)
    assert process.poll() is None
    process.terminate()
    assert process.wait(60) == 0
    assert run.state("capture")["state"] == "failed"


def test_when_no_worker_can_go_on_the_first_ones_code_is_the_whole_ones(run: Run) -> None:
    later = "import sys, time; time.sleep(0.5); sys.exit(33)"
    process = run.start(
        ("capture", later, {}),
        ("pipelines", exits(ConfigError.exit_code), {}),
        ("serve", STAYS, {"worker": False}),
    )
    assert process.wait(60) == ConfigError.exit_code


def test_waiting_for_what_never_comes_is_no_hope(run: Run) -> None:
    process = run.start(
        ("capture", exits(GapError.exit_code), {}), ("pipelines", STAYS, {"ready": "log"})
    )
    assert process.wait(60) == GapError.exit_code
    assert not (run.folder / "pipelines.up").exists()


def test_a_process_starts_when_it_is_ready(run: Run) -> None:
    process = run.start(("capture", STAYS, {}), ("pipelines", STAYS, {"ready": "log"}))
    run.up("capture")
    wait_for(lambda: run.state("pipelines").get("state") == "waiting")
    (run.folder / "log").touch()
    run.up("pipelines")
    process.terminate()
    assert process.wait(60) == 0


def test_who_does_not_stop_is_killed(run: Run) -> None:
    process = run.start(("capture", STUBBORN, {"stop_s": 0.2}), ("serve", STAYS, {}))
    run.up("capture", "serve")
    process.terminate()
    assert process.wait(60) == 0
    assert run.state("capture")["exit_code"] == -signal.SIGKILL
    assert run.state("serve")["exit_code"] == 0


def test_a_second_signal_hurries(run: Run) -> None:
    process = run.start(("capture", STUBBORN, {"stop_s": 600}))
    run.up("capture")
    process.send_signal(signal.SIGINT)
    wait_for(lambda: run.told()["state"] == "stopping")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0


def test_children_die_with_the_supervisor(run: Run) -> None:
    process = run.start(("capture", STAYS, {}))
    run.up("capture")
    wait_for(lambda: run.state("capture").get("pid"))
    child = run.state("capture")["pid"]
    process.kill()
    process.wait()
    wait_for(lambda: not alive(child))


def test_what_a_dead_child_started_is_ended(run: Run) -> None:
    process = run.start(("pipelines", FAMILY, {}))
    run.up("pipelines")
    wait_for(lambda: run.state("pipelines").get("pid"))
    grandchild = int((run.folder / "grandchild").read_text())
    os.kill(run.state("pipelines")["pid"], signal.SIGKILL)
    wait_for(lambda: not _running(grandchild))
    process.terminate()
    assert process.wait(60) == 0


def _running(pid: int) -> bool:
    """Alive and no zombie: an orphan waits for whoever adopted it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] != "Z"


def test_one_supervisor_a_folder(run: Run, tmp_path: Path) -> None:
    process = run.start(("capture", STAYS, {}))
    run.up("capture")
    second = subprocess.run(
        [sys.executable, "-c", SUPERVISE, str(tmp_path / "data"), "[]"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert AlreadyRunningError.__name__ in second.stderr
    assert run.state("capture")["state"] == "running"
    process.terminate()
    assert process.wait(60) == 0


@given(st.integers(min_value=1, max_value=10_000))
def test_waits_grow_to_the_limit(failures: int) -> None:
    pace = Pace()
    delay_s = pace.delay_s(failures)
    assert pace.first_s <= delay_s <= pace.limit_s
    assert pace.delay_s(failures + 1) == min(2 * delay_s, pace.limit_s)


def test_final_codes_are_those_that_never_mend() -> None:
    assert {2, 3, 10, 11, 12, 13, 14, 15, 16, 17, 22, 32, 33} <= set(FINAL)
    assert not {0, 1, 20, 21, 30, 31} & set(FINAL)


@pytest.mark.parametrize(
    ("code", "name"), [(0, "0"), (1, "1"), (13, "13 DISK_FULL"), (-15, "SIGTERM")]
)
def test_codes_have_names(code: int, name: str) -> None:
    assert named(code) == name


def test_a_signal_without_a_name() -> None:
    assert named(-signal.SIGRTMIN - 1) == f"signal {signal.SIGRTMIN + 1}"
