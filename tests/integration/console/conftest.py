"""One running system per file, a visitor, and a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.console import chromium as browsers
from tests.integration.console.running import ROWS, Browser, Running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selenium.webdriver import Chrome

    from tailrace.testing import EmbeddedNats
    from tests.fix_postgres import Database


@pytest.fixture
def running(
    database: Database, nats_server: EmbeddedNats, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A system that has delivered rows."""
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    database.execute("CREATE PUBLICATION tailrace FOR TABLE orders")
    slot = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
    database.query(slot, database.name[-63:])
    with Running(tmp_path_factory.mktemp("console"), database, nats_server) as system:
        system.start()
        database.execute(f"INSERT INTO orders SELECT g, 'n' FROM generate_series(1, {ROWS}) g")
        system.wait_until(lambda: system.events("shop") >= ROWS, "delivery to NATS")
        system.wait_until(lambda: system.events("hooks") >= ROWS - 1, "delivery to the receiver")
        yield system
        system.stop()
    system.close()


@pytest.fixture
def browser(running: Running) -> Iterator[Browser]:
    """A visitor who has logged in."""
    visitor = Browser(running)
    visitor.log_in()
    yield visitor
    visitor.close()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    driver = browsers.start(tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


@pytest.fixture
def chrome(chromium: Chrome) -> Chrome:
    """The browser, whose logs hold nothing of another test."""
    chromium.get("about:blank")
    browsers.requested(chromium)
    browsers.complaints(chromium)
    return chromium
