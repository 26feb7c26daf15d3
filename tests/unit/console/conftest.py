"""Fixtures for the console."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.run import status
from tests.unit.console.house import USERS, House, Visitor

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody writes status files again, however slow the machine is."""
    monkeypatch.setattr(status, "STALE_S", 3600.0)


@pytest.fixture
def house(tmp_path: Path) -> House:
    """A system without users."""
    return House(tmp_path / "data")


@pytest.fixture
def guarded(tmp_path: Path) -> House:
    """A system with an operator, ann, and a viewer, vic."""
    made = House(tmp_path / "data", http={"users": USERS})
    made.healthy()
    made.park()
    return made


@pytest.fixture
def anyone(house: House) -> Visitor:
    """A visitor without a login."""
    return Visitor(house)


@pytest.fixture
def operator(house: House) -> Visitor:
    """A visitor who has logged in with the token of the endpoints."""
    visitor = Visitor(house)
    assert visitor.log_in().status_code == 303
    return visitor
