"""Buttons on a full disk, and with files of another user: a page with the error, and no effect."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest

from tailrace import audit
from tailrace.backfill import queue
from tailrace.errors import StorageError
from tailrace.log import retention
from tailrace.log.store import LocalStore
from tests.unit.console.edited import Settings
from tests.unit.console.house import TOKEN

if TYPE_CHECKING:
    from tests.unit.console.house import House, Visitor

PARKED = "/console/parked/shop"


def content(house: House) -> tuple[object, ...]:
    """What operators can change: orders, entries of the audit file, and pins."""
    files = {
        path: path.read_bytes()
        for path in house.data.rglob("*")
        if path.suffix in (".json", ".jsonl")
    }
    return files, retention.read_pins(LocalStore(house.config.log.path))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("whose", ["audit", "lock"])
def test_no_action_without_an_entry(
    house: House, operator: Visitor, monkeypatch: pytest.MonkeyPatch, number: int, whose: str
) -> None:
    """GIVEN an audit file or a lock that cannot be opened WHEN each button is pressed THEN its page
    is an error with a hint, and nothing has changed."""
    house.healthy()
    house.park()
    settings = Settings(house)
    settings.values["http"] = {"port": 1}
    settings.write()
    retention.pin(LocalStore(house.config.log.path), "gone", house.folder.positions[3], now=0.0)
    filled = queue.submit(house.config, "shop", "t1", user="ann")
    before = content(house)
    opened = os.open

    def refuse(path: Any, *arguments: Any, **more: Any) -> int:
        name = os.fspath(path)
        if name.endswith(audit.FILE if whose == "audit" else "lock"):
            raise OSError(number, os.strerror(number))
        return opened(path, *arguments, **more)

    monkeypatch.setattr(os, "open", refuse)
    pressed: tuple[tuple[str, dict[str, str]], ...] = (
        ("/console/pipelines/shop/pause", {}),
        ("/console/pipelines/shop/rewind", {"to": "earliest"}),
        (f"{PARKED}/drop", {"all": "true"}),
        ("/console/backfills/start", {"pipeline": "shop", "table": "t2"}),
        (f"/console/backfills/{filled.id}/cancel", {}),
        ("/console/settings/apply", {}),
        ("/console/log/pins/gone/unpin", {}),
    )
    for path, fields in pressed:
        if whose == "lock" and path.endswith("unpin"):
            continue
        answer = operator.do(path, **fields)
        assert answer.status_code == 503, (path, answer.text)
        assert answer.headers["content-type"].startswith("text/html")
        assert ("DISK_FULL" if number == errno.ENOSPC else "STORAGE") in answer.text
        program = operator.ask(
            "POST", path.replace("/console", "/api/v1"), content=b"{}",
            authorization=f"Bearer {TOKEN}",
        )  # fmt: skip
        assert program.status_code in (400, 503)
    assert content(house) == before


def test_an_audit_file_that_cannot_be_read_is_a_page(
    house: House, operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.healthy()

    def refuse(*_arguments: object, **_more: object) -> None:
        raise StorageError("cannot read audit.jsonl: Permission denied")

    monkeypatch.setattr(audit, "latest", refuse)
    answer = operator.get("/console/audit")
    assert (answer.status_code, "STORAGE" in answer.text) == (503, True)
