"""What the pages share: figures that are read once, and turns at a server that is slow."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tailrace.console.system import System
from tailrace.console.views import source
from tailrace.errors import PostgresUnreachableError
from tests.unit.console.house import ORIGIN, TOKEN, House

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUESTS = 50
"""More than there are threads."""
LIMIT_S = 120


def test_an_error_is_kept_for_some_seconds(house: House) -> None:
    """GIVEN a server that does not answer WHEN pages read it again and again THEN it is asked once,
    and again after some seconds."""
    now, asked = [0.0], [0]
    system = System(house.config, house.overview.read, Any, Any, clock=lambda: now[0])  # type: ignore[arg-type]

    def read() -> str:
        asked[0] += 1
        # An answer that takes longer than it is kept.
        now[0] += 30.0
        if asked[0] < 3:
            raise PostgresUnreachableError(f"no answer {asked[0]}")
        return "tables"

    for _ in range(5):
        with pytest.raises(PostgresUnreachableError, match="no answer 1"):
            system.kept("tables", 10.0, read)
    now[0] += 6.0
    with pytest.raises(PostgresUnreachableError, match="no answer 2"):
        system.kept("tables", 10.0, read)
    now[0] += 6.0
    assert [system.kept("tables", 10.0, read) for _ in range(3)] == ["tables"] * 3
    system.forget("tables")
    system.kept("tables", 10.0, read)
    assert asked[0] == 4


@pytest.mark.parametrize("path", ["/console/tables", "/api/v1/doctor"])
def test_a_source_that_is_slow_stops_no_other_page(
    house: House, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """GIVEN a source that does not answer WHEN more requests wait for it than there are threads
    THEN the overview is shown meanwhile; and all of them get the error when it comes."""
    house.healthy()
    released, asked = threading.Event(), []

    @contextmanager
    def session(_system: object) -> Iterator[None]:
        asked.append(1)
        assert released.wait(LIMIT_S)
        raise PostgresUnreachableError("no answer within 3 s")
        yield

    monkeypatch.setattr(source, "session", session)

    async def visit() -> list[httpx.Response]:
        transport = httpx.ASGITransport(house.application, client=("127.0.0.1", 40000))
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(
            transport=transport, base_url=ORIGIN, headers=headers
        ) as client:
            waiting = [asyncio.create_task(client.get(path)) for _ in range(REQUESTS)]
            try:
                overview = await asyncio.wait_for(client.get("/"), LIMIT_S / 2)
                assert overview.status_code == 200
                assert not any(each.done() for each in waiting)
            finally:
                released.set()
            return await asyncio.gather(*waiting)

    answers = asyncio.run(visit())
    assert {each.status_code for each in answers} == {502}
    assert len(asked) == 1
