"""The embedded servers themselves: they start, stop, crash, keep their data and leave nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pytest

from tailrace.testing import EmbeddedNats, EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.testing.postgres import Major


@pytest.mark.parametrize("major", [18, 16, pytest.param(15, marks=pytest.mark.long)])
def test_postgres_keeps_its_data_and_leaves_nothing(major: Major) -> None:
    if not EmbeddedPostgres.installed(major):
        pytest.skip(f"PostgreSQL {major} is not installed")
    with EmbeddedPostgres(major) as server:
        name = server.create_database("kept")
        with server.connect(name) as connection:
            assert connection.info.server_version // 10000 == major
            assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
            connection.execute("CREATE TABLE t (n int); INSERT INTO t VALUES (1)")
        port = server.port
        server.restart()
        assert server.port == port
        with server.connect(name) as connection:
            connection.execute("INSERT INTO t VALUES (2)")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            server.connect(name)
        server.start()
        with psycopg.connect(server.dsn(name)) as connection:
            assert connection.execute("SELECT n FROM t ORDER BY n").fetchall() == [(1,), (2,)]
        pid, folder = server.process.pid, server.folder
    assert not psutil.pid_exists(pid)
    assert not folder.exists()
    server.destroy()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's servers run as another user")
@pytest.mark.parametrize("major", [18, 16])
def test_root_may_have_installed_it_for_itself(
    major: Major, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN packages in a folder that only root may enter, and a umask for its owner only WHEN
    PostgreSQL starts as another user THEN a copy of its programs finds its libraries."""
    monkeypatch.setattr("tailrace.testing.postgres.reachable_by", lambda *_: False)
    umask = os.umask(0o077)
    try:
        with EmbeddedPostgres(major) as server, server.connect() as connection:
            assert server.binary("initdb").is_relative_to(server.folder)
            assert connection.info.server_version // 10000 == major
    finally:
        os.umask(umask)
    assert not server.folder.exists()


def test_postgres_takes_settings_and_has_its_programs() -> None:
    with EmbeddedPostgres(settings={"wal_level": "replica"}) as server:
        with server.connect() as connection:
            assert connection.execute("SHOW wal_level").fetchone() == ("replica",)
            ((owner,),) = connection.execute("SELECT current_user").fetchall()
        assert owner == "postgres"
        for program in ("pg_recvlogical", "pgbench", "psql"):
            assert server.binary(program).exists()
        # PostgreSQL refuses to run as root, also if root runs this test.
        assert psutil.Process(server.process.pid).uids().effective != 0
    with pytest.raises(RuntimeError, match="is not running"):
        _ = server.process


def test_databases_are_apart_and_go_with_their_slots(postgres: EmbeddedPostgres) -> None:
    first, second = postgres.create_database("apart"), postgres.create_database("apart")
    assert first != second
    with postgres.connect(first) as connection:
        connection.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (f"slot_{first}",)
        )
    for name in (first, second):
        postgres.drop_database(name)
    with postgres.connect() as connection:
        left = connection.execute(
            "SELECT slot_name FROM pg_replication_slots WHERE database = %s", (first,)
        ).fetchall()
    assert left == []


def test_two_servers_stand_beside_each_other() -> None:
    with EmbeddedNats() as one, EmbeddedNats() as two:
        assert one.port != two.port
        assert one.folder != two.folder


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal")
def test_servers_die_with_an_owner_that_is_killed() -> None:
    program = (
        "import time; from tailrace.testing import EmbeddedNats, EmbeddedPostgres;"
        "nats = EmbeddedNats().start(); postgres = EmbeddedPostgres().start();"
        "print(nats._process.pid, postgres.process.pid, nats.folder, postgres.folder, flush=True);"
        "time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        first, second, *folders = owner.stdout.readline().split()
        servers = [psutil.Process(int(first)), psutil.Process(int(second))]
        owner.kill()
    try:
        _, alive = psutil.wait_procs(servers, timeout=60)
        assert alive == []
    finally:
        subprocess.run(["rm", "-rf", *folders], check=True)


def test_ctrl_c_is_not_for_the_servers() -> None:
    with EmbeddedPostgres() as postgres, EmbeddedNats() as nats:
        assert nats._process is not None
        for pid in (postgres.process.pid, nats._process.pid):
            assert os.getpgid(pid) != os.getpgid(0)


@contextlib.contextmanager
def client(server: EmbeddedNats) -> Iterator[tuple[socket.socket, dict[str, Any]]]:
    """A connection to NATS by hand, with the server's INFO."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as line:
        word, _, info = line.makefile("rb").readline().partition(b" ")
        assert word == b"INFO"
        yield line, json.loads(info)


def request(server: EmbeddedNats, subject: str, body: object) -> dict[str, Any]:
    """One JetStream request and its answer."""
    payload = json.dumps(body).encode()
    with client(server) as (line, _):
        line.sendall(b'CONNECT {"verbose":false}\r\nSUB answer 1\r\n')
        line.sendall(f"PUB {subject} answer {len(payload)}\r\n".encode() + payload + b"\r\n")
        answers = line.makefile("rb")
        while not (head := answers.readline()).startswith(b"MSG "):
            assert head
        found: dict[str, Any] = json.loads(answers.read(int(head.split()[-1])))
        return found


def test_nats_has_jetstream() -> None:
    with EmbeddedNats() as server:
        with client(server) as (_, info):
            assert info["jetstream"] is True
            assert info["port"] == server.port
        assert server.url == f"nats://127.0.0.1:{server.port}"
        folder = server.folder
    assert not folder.exists()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_nats_keeps_its_streams(how: signal.Signals, tmp_path: Path) -> None:
    stream = {"name": "S", "subjects": ["s.*"], "storage": "file"}
    given = tmp_path / "nats"
    with EmbeddedNats(data=given) as server:
        assert "error" not in request(server, "$JS.API.STREAM.CREATE.S", stream)
        if how is signal.SIGTERM:
            server.stop()
        else:
            server.kill()
        server.start()
        assert request(server, "$JS.API.STREAM.INFO.S", {})["config"]["name"] == "S"
    with EmbeddedNats(data=given) as other:
        assert request(other, "$JS.API.STREAM.INFO.S", {})["config"]["name"] == "S"
    assert any(given.iterdir())
