"""The sample shop: what it commits is what PostgreSQL streams, with every kind of change."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tailrace.change import ABSENT, UNCHANGED, Op
from tailrace.testing import SampleShop
from tailrace.testing.shop import CLOSED, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_capture import Captured
    from tests.fix_postgres import Database


@pytest.mark.parametrize("seed", [0, 7])
def test_what_it_counts_is_what_is_captured(
    database: Database, capture: Callable[..., Captured], seed: int
) -> None:
    with database.connect() as connection:
        shop = SampleShop(connection, rng=random.Random(seed))
        shop.create()
        captured = capture(database)
        for _ in range(300):
            shop.step()
        shop.close()
    changes = captured.catch_up()
    assert Counter(change.op for change in changes) == shop.committed
    assert len({change.xid for change in changes}) == shop.transactions
    assert changes[-1].prefix == CLOSED
    assert shop.rollbacks
    assert not [change for change in changes if change.after and b"/never" in change.after]


def test_the_first_steps_show_everything(
    database: Database, capture: Callable[..., Captured]
) -> None:
    with database.connect() as connection:
        shop = SampleShop(connection)
        shop.create()
        captured = capture(database)
        for _ in range(13):
            shop.step()
    changes = captured.catch_up()
    assert {change.op for change in changes} == set(Op) - {Op.READ}
    assert {change.relation.name for change in changes if change.relation} == set(TABLES)
    updates = [change for change in changes if change.op is Op.UPDATE and change.after]
    described = [
        change for change in updates if change.relation and change.relation.name == "products"
    ]
    assert {UNCHANGED in (change.after or ()) for change in described} == {True, False}
    assert any(change.before and ABSENT in change.before for change in updates)
    assert shop.rollbacks == 1
    assert max(Counter(change.xid for change in changes).values()) > 5


def test_it_runs_until_the_stop_event(database: Database) -> None:
    stop = threading.Event()
    with database.connect() as connection:
        shop = SampleShop(connection)
        shop.create()
        thread = threading.Thread(target=lambda: shop.run(stop, per_second=1000))
        thread.start()
        while shop.transactions < 20:
            stop.wait(0.01)
        stop.set()
        thread.join()
        ((orders,),) = connection.execute("SELECT count(*) FROM orders").fetchall()
    assert orders > 0


def test_the_same_seed_is_the_same_traffic(database: Database) -> None:
    counts = []
    for schema in ("a", "b"):
        with database.connect() as connection:
            connection.execute(f"CREATE SCHEMA {schema}; SET search_path TO {schema}".encode())
            shop = SampleShop(connection, rng=random.Random(3))
            shop.create()
            for _ in range(100):
                shop.step()
            counts.append((shop.committed, shop.transactions, shop.rollbacks))
    assert counts[0] == counts[1]
