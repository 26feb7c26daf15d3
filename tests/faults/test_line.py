"""The server and the line to it fail; capture goes on by itself and nothing is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tailrace.testing import TcpProxy
from tests.faults.harness import Rig, Writers
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database


def moving(rig: Rig) -> None:
    """Wait until capture is seen to acknowledge something new."""
    start = rig.server_end()
    wait_for(lambda: rig.confirmed() >= start, "the slot to move")


def settle(rig: Rig) -> None:
    rig.catch_up()
    assert rig.check_log(complete=True) > 0
    rig.check_acknowledged()


def test_postgres_crashes_and_comes_back(rig: Rig, seed: int) -> None:
    process = rig.start()
    with Writers(rig.database, seed=seed):
        moving(rig)
        rig.database.server.kill()
        rig.database.server.start()
        moving(rig)
    rig.check_stopped(process)
    assert "UNREACHABLE" in rig.output()
    settle(rig)


def test_postgres_restarts_in_order_while_capture_is_idle(rig: Rig) -> None:
    """An orderly shutdown waits for us to acknowledge the end of WAL: it must not hang."""
    process = rig.start()
    moving(rig)
    rig.database.server.restart()
    moving(rig)
    rig.check_stopped(process)


def test_walsender_is_terminated(rig: Rig, seed: int) -> None:
    process = rig.start()
    with Writers(rig.database, seed=seed):
        for _ in range(3):
            moving(rig)
            rig.database.query(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
                "WHERE slot_name = %s",
                rig.slot,
            )
    moving(rig)
    rig.check_stopped(process)
    settle(rig)


@pytest.fixture
def proxy(victim_database: Database) -> Iterator[TcpProxy]:
    with TcpProxy("127.0.0.1", victim_database.server.port) as proxy:
        yield proxy


@pytest.fixture
def proxied(victim_database: Database, proxy: TcpProxy, tmp_path: Path) -> Iterator[Rig]:
    name = victim_database.name
    dsn = f"host=127.0.0.1 port={proxy.port} user=postgres dbname={name}"
    rig = Rig(victim_database, tmp_path, dsn=dsn)
    yield rig
    rig.end()


def test_connection_is_cut(proxied: Rig, proxy: TcpProxy, seed: int) -> None:
    process = proxied.start()
    with Writers(proxied.database, seed=seed):
        for _ in range(3):
            moving(proxied)
            proxy.cut()
    moving(proxied)
    proxied.check_stopped(process)
    settle(proxied)


def test_connection_becomes_a_black_hole(proxied: Rig, proxy: TcpProxy, seed: int) -> None:
    """No FIN, no RST: only silence tells. `wal_sender_timeout` is 5 s here."""
    process = proxied.start()
    with Writers(proxied.database, seed=seed):
        moving(proxied)
        proxy.black_hole()
        wait_for(lambda: "sent nothing for" in proxied.output(), "capture to notice the silence")
        proxy.heal()
        moving(proxied)
    proxied.check_stopped(process)
    settle(proxied)


def test_stops_in_time_though_the_server_does_not_answer(proxied: Rig, proxy: TcpProxy) -> None:
    process = proxied.start()
    moving(proxied)
    proxy.black_hole()
    process.stop(120)
    proxy.heal()


def test_another_reader_holds_the_slot(rig: Rig) -> None:
    dsn = f"{rig.database.socket_dsn} replication=database options='-c wal_sender_timeout=0'"
    other = psycopg.connect(dsn, autocommit=True)
    other.pgconn.exec_(
        f'START_REPLICATION SLOT "{rig.slot}" LOGICAL 0/0 '
        "(proto_version '1', publication_names 'tailrace')".encode()
    )
    process = rig.start()
    wait_for(lambda: "SLOT_BUSY" in rig.output(), "capture to find the slot busy")
    other.close()
    rig.database.execute("INSERT INTO ledger VALUES (1, 1, 1, 'x')")
    moving(rig)
    rig.check_stopped(process)
    settle(rig)
