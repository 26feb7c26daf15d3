"""Pages are rendered again only when something may have changed, for those who may see them."""

from __future__ import annotations

import asyncio
import threading
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.console.live import _unless_equal
from tailrace.console.site import Site
from tailrace.log.store import LocalStore
from tests.fix_log import TestLog, insert, relation, transaction
from tests.unit.console.house import ORIGIN, House, Visitor

if TYPE_CHECKING:
    from pathlib import Path


def test_a_view_that_takes_time_is_not_repeated() -> None:
    """GIVEN a version WHEN it stays equal THEN the page is not rendered again."""
    version, rendered = ["one"], count()
    page = _unless_equal(lambda: f"page {next(rendered)}", lambda: version[0])
    assert [page(), page(), page()] == ["page 0"] * 3
    version[0] = "two"
    assert [page(), page()] == ["page 1"] * 2


def test_without_a_version_every_view_is_new() -> None:
    rendered = count()
    page = _unless_equal(lambda: f"page {next(rendered)}", None)
    assert [page(), page()] == ["page 0", "page 1"]


@pytest.mark.parametrize("page", ["/console/messages", "/"])
def test_a_stream_ends_with_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    """GIVEN an open page WHEN its user logs out, and something changes THEN the stream ends without
    the change."""
    written = TestLog(LocalStore(tmp_path / "own", create=True), log_id="a1")  # type: ignore[arg-type]
    written.append_all(transaction(number) for number in range(3))
    house = House(tmp_path / "data", log={"path": str(tmp_path / "own")})
    house.healthy()
    visitor = Visitor(house)
    visitor.log_in()
    csrf, rendered, refreshed = visitor.csrf, threading.Event(), Site._refreshed

    def watched(site: Site, *given: Any) -> str:
        text = refreshed(site, *given)
        rendered.set()
        return text

    monkeypatch.setattr(Site, "_refreshed", watched)

    async def read() -> str:
        stream = asyncio.create_task(visitor.asked("GET", f"/console/live?page={page}"))
        await asyncio.to_thread(rendered.wait)
        ended = await visitor.asked("POST", "/logout", content=f"csrf={csrf}", origin=ORIGIN)
        assert ended.status_code == 303
        written.append(transaction(7, insert(relation(1), 777, "just-now")))
        house.failing.append("just-now")
        return (await stream).text

    assert "just-now" not in asyncio.run(read())
