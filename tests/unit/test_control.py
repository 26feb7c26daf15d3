"""The desired state of a pipeline, when several operators change it at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tailrace import audit
from tailrace.control import ControlFile
from tailrace.position import Position

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = 40


def test_no_order_is_lost(tmp_path: Path) -> None:
    """GIVEN a pipeline WHEN it is paused, restarted and moved by several operators at once THEN the
    file has each order, and the audit file an entry of each."""
    position = Position.parse("0/16B3748.2")

    def order(number: int) -> None:
        control = ControlFile(tmp_path, "shop")
        match number % 3:
            case 0:
                control.restart(user="ann")
            case 1:
                control.move("skip", position, user="bob")
            case _:
                control.pause(user="eve")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(order, range(3 * ORDERS)))
    found = ControlFile(tmp_path, "shop").read()
    assert (found.paused, found.restarts, found.moves) == (True, ORDERS, ORDERS)
    assert (found.position, found.action) == (str(position), "skip")
    assert len(audit.latest(tmp_path, limit=1000)) == 3 * ORDERS
