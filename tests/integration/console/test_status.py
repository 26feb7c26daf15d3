"""`tailrace status` and `tailrace replica` on files, through the server of this machine, with
`--at`, and live on a terminal."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tailrace.config import Config
from tailrace.observe.figures import CaptureFigures, ProcessFigures
from tailrace.observe.replica import FollowerFigures, FollowingFigures, LeaderFigures
from tailrace.run import status
from tailrace.run.status import RunStatus
from tests.command import call, command
from tests.integration.console.serving import serving
from tests.unit.console.house import RUNNING, TOKEN, USERS, House
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

API_REFUSED = 51


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Status files are written once."""
    monkeypatch.setattr(status, "STALE_S", 3600.0)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def house(tmp_path: Path) -> House:
    made = House(tmp_path / "data")
    made.healthy()
    return made


def settings(house: House, folder: Path, **http: object) -> Path:
    file = folder / "tailrace.yml"
    file.write_text(json.dumps(house.folder.settings | {"http": http}))
    return file


def fail(house: House) -> None:
    house.write(replace(RUNNING, state="failed", code="POISONED", message="answers 422"))


def shown(*words: object, code: int = 0) -> str:
    done = call("status", *words)
    assert done.returncode == code, done.stdout + done.stderr
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "\x1b" not in done.stdout
    return done.stdout


def test_files_and_a_server_show_the_same(house: House, tmp_path: Path) -> None:
    """GIVEN a system WHEN its state is read as files, and over HTTP THEN the pictures are the same,
    but for what only the server knows, and the exit code is that of the worst problem."""
    file = settings(house, tmp_path, port=0)
    here = shown("-c", file)
    assert here.startswith("healthy")
    assert "no HTTP server" in " ".join(here.split())
    with serving(house) as url:
        there = shown("--at", url)
        assert "no HTTP server" not in " ".join(there.split())
        assert "50 KiB" in there  # of WAL, as PostgreSQL reports it
        for text in ("shop → nats running", "streaming", "40 ms", "250 ms"):
            assert text in here
            assert text in there
        house.park()
        # Figures are read once per second.
        wait_for(lambda: "tailrace parked ls shop" in shown("--at", url), "the parked messages")
        fail(house)
        wait_for(lambda: call("status", "--at", url).returncode == 1, "the new figures")
        for words in (("-c", file), ("--at", url)):
            assert "POISONED" in shown(*words, code=1)
        document = json.loads(call("status", "--at", url, "--json").stdout)
        assert document["state"] == "error"
        assert document["pipelines"][0]["code"] == "POISONED"
        assert "trends" not in document


def test_a_run_of_this_machine_is_asked_itself(house: House, tmp_path: Path) -> None:
    """GIVEN a system that runs THEN its own server answers, since it knows rates and lag. Another
    system on the port is not taken for it."""
    run(house, pid=os.getpid())
    with serving(house) as url:
        file = settings(house, tmp_path, port=urlsplit(url).port)
        assert "no HTTP server" not in " ".join(shown("-c", file, code=0).split())
        other = House(tmp_path / "other")
        other.healthy()
        run(other, pid=os.getpid() + 1)
        file = settings(other, tmp_path, port=urlsplit(url).port)
        assert "no HTTP server" in " ".join(call("status", "-c", file).stdout.split())
    guarded = House(tmp_path / "guarded", http={"users": USERS})
    with serving(guarded) as url:
        assert call("status", "--at", url).returncode == API_REFUSED


def test_a_foreign_listener_receives_no_token(house: House, tmp_path: Path) -> None:
    """GIVEN users, no TLS, and a program of another user on the port of the system WHEN its status
    is read THEN the figures are those of the files, and the program has received no token."""
    received = []

    class Foreign(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(dict(self.headers))
            self.send_error(401)

    run(house, pid=os.getpid())
    with HTTPServer(("127.0.0.1", 0), Foreign) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            for keys in ({"users": USERS}, {}):
                http = {"port": server.server_port, "token": TOKEN, **keys}
                file = settings(house, tmp_path, **http)
                assert "no HTTP server" in " ".join(shown("-c", file).split())
        finally:
            server.shutdown()
            thread.join()
    assert not [each for each in received if TOKEN in str(each)]


def test_a_run_with_tls_is_asked_under_any_name(tmp_path: Path, certificates: Path) -> None:
    """The certificate is that of the settings, so its name need not be that of this machine."""
    tls = {"certificate": str(certificates / "named.crt"), "key": str(certificates / "named.key")}
    house = House(tmp_path / "data", http={"users": USERS, "tls": tls})
    house.healthy()
    run(house, pid=os.getpid())
    with serving(house, certificate=certificates / "named.pem") as url:
        port = urlsplit(url).port
        file = settings(house, tmp_path, port=port, users=USERS, token=TOKEN, tls=tls)
        assert "no HTTP server" not in " ".join(shown("-c", file).split())
        other = {name: path.replace("named", "client") for name, path in tls.items()}
        file = settings(house, tmp_path, port=port, users=USERS, token=TOKEN, tls=other)
        assert "no HTTP server" in " ".join(shown("-c", file).split())


def run(house: House, *, pid: int) -> None:
    """`tailrace run` reports that its processes run."""
    processes = {
        name: ProcessFigures(state="running", up=True, pid=pid if name == "serve" else os.getpid())
        for name in ("capture", "pipelines", "serve")
    }
    status.write(house.where, "run", RunStatus(started_at=time.time(), processes=processes))


def test_without_anything_it_says_what_to_start(tmp_path: Path) -> None:
    file = tmp_path / "tailrace.yml"
    paths = {"data": str(tmp_path / "data"), "log": {"path": str(tmp_path / "log")}}
    file.write_text(json.dumps(paths))
    found = shown("-c", file, code=1)
    assert "tailrace run" in found
    assert "no pipelines are configured" in found


class Terminal:
    """A command on a terminal of its own, 80 by 30."""

    def __init__(self, *words: object) -> None:
        self.output = ""
        master, slave = pty.openpty()
        self._master = master
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "30"}
        self.process = subprocess.Popen(
            command(*words), stdin=slave, stdout=slave, stderr=slave, env=environment
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self._master, 65536)
            except OSError:
                return
            if not part:
                return
            self.output += part.decode(errors="replace")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(60)
        self._reader.join()
        os.close(self._master)
        return code


@pytest.fixture
def writing(house: House) -> Iterator[House]:
    """A system whose processes report every second, as they do."""
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.5):
            for path in house.where.glob("*.json"):
                path.touch()

    writer = threading.Thread(target=write)
    writer.start()
    yield house
    stop.set()
    writer.join()


def test_watch_refreshes_in_place(writing: House, tmp_path: Path) -> None:
    """GIVEN a terminal WHEN the system gets into trouble THEN the picture changes in place, and the
    exit code is that of the last one."""
    file = settings(writing, tmp_path, port=0)
    terminal = Terminal("status", "--watch", "--every", 0.2, "-c", file)
    try:
        wait_for(lambda: terminal.output.count("healthy") >= 2, lambda: terminal.output)
        assert "\x1b[1A" in terminal.output  # The cursor moves up instead of a second picture.
        fail(writing)
        wait_for(lambda: "POISONED" in terminal.output, lambda: terminal.output)
    finally:
        code = terminal.stop()
    assert code == 1


def test_watch_prints_once_where_there_is_no_terminal(house: House, tmp_path: Path) -> None:
    assert shown("--watch", "-c", settings(house, tmp_path, port=0)).count("healthy") == 1


def test_watch_goes_on_while_the_server_is_away(writing: House) -> None:
    """GIVEN a live picture WHEN the server stops THEN the error replaces it, with its fix."""
    with serving(writing) as url:
        terminal = Terminal("status", "--watch", "--every", 0.2, "--at", url)
        wait_for(lambda: "healthy" in terminal.output, lambda: terminal.output)
    try:
        wait_for(lambda: "API_UNREACHABLE" in terminal.output, lambda: terminal.output)
    finally:
        code = terminal.stop()
    assert code == 50


def test_replica_shows_followers_and_leaders(house: House, tmp_path: Path) -> None:
    """The same on files and with --at."""
    follower = FollowerFigures(
        address="db2:7432", state="REPLICA_REFUSED", reason="another key", lag_bytes=2048, lag_s=90
    )
    leader = LeaderFigures(state="replicating", mode="sync", quorum=1, in_quorum=False, epoch=3)
    house.folder.settings |= {"replication": {"followers": ["db2:7432"], "mode": "sync"}}
    config = Config.model_validate(house.folder.settings | {"http": {"token": TOKEN}})
    assert config.replication.followers == ("db2:7432",)
    status.write(house.where, "replicate", replace(leader, followers=(follower,)))
    file = settings(house, tmp_path, port=0)
    found = call("replica", "-c", file)
    assert found.returncode == 0, found.stderr
    for text in (
        "replicating",
        "mode sync, epoch 3",
        "not reached",
        "db2:7432",
        "2.0 KiB",
        "another",
    ):
        assert text in found.stdout
    served = House(tmp_path / "other")
    status.write(served.where, "follow", FollowingFigures(state="following", leader="db1", epoch=3))
    with serving(served) as url:
        found = call("replica", "--at", url)
        assert "follower: following, of db1, durable up to" in found.stdout
        assert json.loads(call("replica", "--at", url, "--json").stdout)["follower"]["epoch"] == 3
    (served.where / "follow.json").unlink()
    assert "No machine has a copy" in call("replica", "-c", settings(served, tmp_path)).stdout


def test_figures_without_a_commit_are_unknown(house: House, tmp_path: Path) -> None:
    """GIVEN a stream that goes on while a pipeline stands still WHEN files are read once THEN the
    lag in seconds is unknown, and not the age of the last commit."""
    house.write(replace(RUNNING, position=str(house.folder.positions[0])))
    status.write(house.where, "capture", CaptureFigures(state="streaming"))
    file = settings(house, tmp_path, port=0)
    [pipeline] = json.loads(call("status", "-c", file, "--json").stdout)["pipelines"]
    assert pipeline["lag_s"] is None
    assert pipeline["lag_bytes"] > 0
    shutil.rmtree(house.config.log.path)
    house.write(replace(RUNNING, position=""))
    [pipeline] = json.loads(call("status", "-c", file, "--json").stdout)["pipelines"]
    assert (pipeline["lag_s"], pipeline["lag_bytes"]) == (None, None)
