"""`examples/outbox.py`, as users run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fix_broker import BrokerProcess

_EXAMPLE = Path(__file__).parents[3] / "examples" / "outbox.py"


def test_an_order_and_its_event_are_one_transaction(broker: BrokerProcess) -> None:
    done = subprocess.run(
        [sys.executable, _EXAMPLE, broker.database.dsn, broker.bootstrap],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = [line.split(" ", 3) for line in done.stdout.splitlines()]
    assert [words[:3] for words in found] == [["shop.orders", "0", "0"], ["shop.orders", "0", "1"]]
    assert [json.loads(words[3])["item"] for words in found] == ["a book", "a lamp"]
