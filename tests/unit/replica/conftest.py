"""Fixtures: a log, and the data folder of a leader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.log.store import LocalStore
from tests.fix_log import TestLog
from tests.unit.replica.state_files import database, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A log with a start."""
    made = LocalStore(tmp_path / "log", create=True)
    TestLog(made).close()  # type: ignore[arg-type]
    return made


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data folder of a leader with the pipeline `orders`."""
    folder = tmp_path / "data"
    write(folder / "checkpoints/orders/offsets/3", "offset 3")
    write(folder / "checkpoints/orders/commits/3", "commit 3")
    write(folder / "checkpoints/orders/metadata", "metadata")
    write(folder / "control/orders.json", "{}")
    write(folder / "parked/orders/parts/0-1.part", "parked")
    database(folder / "parked/orders/parked.db", 3).close()
    return folder
