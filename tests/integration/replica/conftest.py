"""Fixtures: a cluster of machines, a leader with a copy of its log elsewhere, and a log with
followers in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.replica.cluster import Copy, Leading, Source
from tests.integration.replica.machines import Cluster, pair_of
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fix_postgres import Database
    from tests.integration.replica.machines import Machine

    Copies = Callable[..., Copy]
    Leads = Callable[..., Leading]


@pytest.fixture
def cluster(database: Database, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(database, tmp_path)
    yield made
    made.end()


@pytest.fixture(params=["", "16", pytest.param("15", marks=pytest.mark.long)])
def any_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(request.getfixturevalue(f"database{request.param}"), tmp_path)
    yield made
    made.end()


@pytest.fixture
def pair(cluster: Cluster) -> tuple[Machine, Machine]:
    """A leader that has captured rows and stopped, and a machine with a copy of its log."""
    return pair_of(cluster)


@pytest.fixture
def role(cluster: Cluster) -> Iterator[str]:
    name = f"role_{cluster.database.name}"
    cluster.database.execute(f"CREATE ROLE {name} LOGIN REPLICATION")
    try:
        yield name
    finally:
        cluster.end()
        wait_for(lambda: not any(map(cluster.active, range(3))), "sessions to end")
        cluster.database.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.fixture
def ending() -> Iterator[list[Copy | Leading]]:
    """What has to end after a test, the last one first."""
    running: list[Copy | Leading] = []
    yield running
    for each in reversed(running):
        each.end()


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    made = Source(tmp_path / "leader")
    yield made
    made.close()


@pytest.fixture
def copy(tmp_path: Path, ending: list[Copy | Leading]) -> Copies:
    def make(name: str = "copy", **settings: object) -> Copy:
        made = Copy(tmp_path / name, **settings)  # type: ignore[arg-type]
        ending.append(made)
        return made

    return make


@pytest.fixture
def lead(source: Source, ending: list[Copy | Leading]) -> Leads:
    def make(*followers: str, **settings: object) -> Leading:
        made = Leading(source.store, *followers, **settings)
        ending.append(made)
        return made

    return make
