"""Privileges of a takeover, and what else looks at the slot of a term."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tailrace import config
from tailrace.pipeline.pipeline import spec_of
from tailrace.postgres.connection import connect
from tailrace.postgres.preflight import Severity, run
from tailrace.run.monitor import Monitor
from tests import command
from tests.integration.replica.machines import pair_of
from tests.waiting import wait_for

if TYPE_CHECKING:
    from tests.integration.replica.machines import Cluster, Machine

FENCED, REFUSED, BAD_CONFIG = 15, 22, 2


def test_a_role_with_replication_is_enough(cluster: Cluster, role: str) -> None:
    dsn = cluster.database.server.dsn(cluster.database.name, user=role)
    leader, other = cluster.machine("leader", dsn=dsn), cluster.machine("other", dsn=dsn)
    cluster.insert(1)
    leader.catch_up()
    old = leader.paused()
    other.copy_log(leader)
    done = other.takeover("--yes", "--force")
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stdout
    old.signal(signal.SIGCONT)
    assert old.wait() == FENCED
    other.catch_up()
    assert other.check() == 1


def test_a_role_without_replication(cluster: Cluster, role: str) -> None:
    _, other = pair_of(cluster)
    cluster.database.execute(f"ALTER ROLE {role} NOREPLICATION")
    dsn = cluster.database.server.dsn(cluster.database.name, user=role)
    done = other.takeover("--yes", "--dsn", dsn)
    assert done.returncode == REFUSED
    assert f'ALTER ROLE "{role}" REPLICATION' in done.stderr
    assert cluster.slots() == [cluster.slot]


def test_a_role_that_may_not_end_the_leader_s_session(cluster: Cluster, role: str) -> None:
    """Nothing is changed: the old leader would stream on beside the new one."""
    database, second = cluster.database, f"{role}_2"
    server = database.server
    database.execute(f"CREATE ROLE {second} LOGIN REPLICATION")
    leader = cluster.machine("leader", dsn=server.dsn(database.name, user=second))
    other = cluster.machine("other", dsn=server.dsn(database.name, user=role))
    try:
        process = leader.paused()
        other.copy_log(leader)
        files = other.files()
        done = other.takeover("--yes", "--force")
        assert done.returncode == REFUSED
        assert f"may not end the session that reads slot {cluster.slot}" in done.stderr
        assert f'GRANT pg_signal_backend TO "{role}";' in done.stderr
        assert (cluster.slots(), other.files()) == ([cluster.slot], files)
        database.execute(f"GRANT pg_signal_backend TO {role}")
        other.take_over("--force")
        process.signal(signal.SIGCONT)
        assert process.wait() == FENCED
    finally:
        cluster.end()
        wait_for(lambda: not any(map(cluster.active, range(3))), "sessions to end")
        database.execute(f"DROP OWNED BY {second}; DROP ROLE {second}")


def test_only_a_superuser_ends_a_superuser_s_session(cluster: Cluster, role: str) -> None:
    database = cluster.database
    database.execute(f"GRANT pg_signal_backend TO {role}")
    leader = cluster.machine("leader")
    other = cluster.machine("other", dsn=database.server.dsn(database.name, user=role))
    leader.paused()
    other.copy_log(leader)
    done = other.takeover("--yes", "--force")
    assert done.returncode == REFUSED
    assert "takeover as a superuser" in done.stderr
    assert cluster.slots() == [cluster.slot]


def test_a_name_that_is_too_long(cluster: Cluster) -> None:
    cluster.slot = f"{cluster.database.name}_{'a' * 63}"[:63]
    create = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
    cluster.database.query(create, cluster.slot)
    _, other = pair_of(cluster)
    files = other.files()
    done = other.takeover("--yes")
    assert done.returncode == BAD_CONFIG
    assert "too long for term 1" in done.stderr
    assert "pg_copy_logical_replication_slot" in done.stderr
    assert other.files() == files
    assert cluster.slots() == [cluster.slot]


def test_init_and_doctor_know_the_term(pair: tuple[Machine, Machine]) -> None:
    leader, other = pair
    cluster = leader.cluster
    other.take_over()
    empty = cluster.machine("empty")
    found = {}
    for machine in (leader, other, empty):
        with connect(cluster.database.dsn) as connection:
            findings = run(connection, machine.config)
        found[machine] = {
            each.check: each.severity for each in findings if each.check.startswith("slot-")
        }
    assert found[other]["slot-exists"] is Severity.OK
    assert found[other]["slot-term"] is Severity.OK
    assert found[leader]["slot-term"] is Severity.ERROR
    assert found[empty]["slot-term"] is Severity.ERROR
    kept = command.run("init", "-c", other.config_file, "--table", "ledger")
    assert kept.returncode == 0, kept.stderr
    assert f"slot {cluster.slot_of(1)}: already exists" in kept.stdout
    fenced = command.run("init", "-c", leader.config_file, "--table", "ledger")
    assert fenced.returncode == FENCED
    assert cluster.slot_of(1) in fenced.stderr
    refused = command.run("init", "-c", empty.config_file, "--table", "ledger")
    assert refused.returncode == REFUSED
    assert f"pg_drop_replication_slot('{cluster.slot_of(1)}')" in refused.stderr
    assert cluster.slots() == [cluster.slot_of(1)]


def test_the_monitor_knows_the_term(pair: tuple[Machine, Machine]) -> None:
    leader, other = pair
    other.take_over()
    old, new = Monitor(leader.config), Monitor(other.config)
    old.check()
    new.check()
    assert old.figures.error == f"taken over: slot {leader.cluster.slot_of(1)} exists"
    assert new.figures.error is None
    assert new.figures.kept_wal_bytes is not None


def test_capture_without_a_log_is_fenced_too(pair: tuple[Machine, Machine]) -> None:
    _, other = pair
    other.take_over()
    empty = other.cluster.machine("empty")
    process = empty.capture()
    assert process.wait() == FENCED
    assert not any(empty.log_folder.glob("*.seg"))


def test_consumers_see_the_configured_name(pair: tuple[Machine, Machine]) -> None:
    _, other = pair
    other.take_over()
    other.cluster.insert(10)
    other.catch_up()
    log = other.log
    assert log.header(log.segments()[-1]).identity.slot == other.cluster.slot_of(1)
    settings = {"pipelines": {"orders": {"sink": {"type": "file", "url": "file:///out"}}}}
    pipeline = config.load(None, settings).pipelines["orders"]
    assert spec_of("orders", pipeline, log, None).slot == other.cluster.slot
