"""Tokens of programs, the sessions that they open, and whom the audit file names."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tailrace import audit
from tailrace.access.tokens import Tokens
from tailrace.backfill import queue as backfills
from tailrace.control import ControlFile
from tests.unit.console.house import PASSWORD, TOKEN, USERS, House, Visitor
from tests.unit.console.test_access import API_PAUSE, PAUSE, paused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_tokens_have_a_scope(guarded: House) -> None:
    """GIVEN a token to read and one to operate WHEN they are used THEN each does what its scope
    says, and the audit file names it."""
    tokens = Tokens(guarded.data)
    read = tokens.create("read", timedelta(days=1), user="ann")
    operate = tokens.create("operate", timedelta(days=1), user="ann")
    visitor = Visitor(guarded)
    for token, code in ((read, 403), (operate, 202)):
        header = {"authorization": f"Bearer {token}"}
        assert visitor.get("/api/v1/parked/shop", **header).status_code == 200
        assert visitor.get("/metrics", **header).status_code == 200
        assert visitor.get("/parked/shop", **header).status_code == 200
        assert visitor.ask("POST", API_PAUSE, content=b"{}", **header).status_code == code
        assert visitor.ask("POST", "/backfills", content=b"", **header).status_code in (code, 400)
    assert paused(guarded)
    name = operate.split("_")[1]
    assert f'"user":"token {name}"' in guarded.audit()
    tokens.revoke(name, user="ann")
    assert visitor.ask("POST", API_PAUSE, authorization=f"Bearer {operate}").status_code == 401


def test_a_session_ends_with_the_token_that_opened_it(tmp_path: Path) -> None:
    """GIVEN a browser that has logged in with a token WHEN the token is revoked THEN its session
    may neither read nor change anything."""
    house = House(tmp_path / "data")
    house.healthy()
    tokens = Tokens(house.data)
    secret = tokens.create("operate", timedelta(hours=1), user="ann")
    visitor = Visitor(house)
    assert visitor.log_in(secret=secret).status_code == 303
    assert visitor.get("/console/audit").status_code == 200
    csrf = visitor.csrf
    tokens.revoke(secret.split("_")[1], user="ann")
    assert visitor.get("/console/audit").status_code == 303
    assert visitor.get("/api/v1/audit").status_code == 401
    assert visitor.submit(PAUSE, csrf=csrf).status_code == 401
    assert not paused(house)


@pytest.mark.parametrize("damage", ["content", "owner"])
def test_a_damaged_file_of_tokens_stops_no_other_client(
    house: House, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """GIVEN a file of tokens that cannot be read WHEN requests come with the server's own token, a
    consumer's or another one THEN they are answered as always, and the overview says what to do."""
    house.healthy()
    tokens = Tokens(house.data)
    lost = tokens.create("operate", timedelta(days=1), user="ann")
    if damage == "content":
        (house.data / "tokens.json").write_text("[{")
    else:
        monkeypatch.setattr(Tokens, "all", raising(PermissionError(13, "Permission denied")))
    visitor = Visitor(house)
    codes = [
        visitor.get("/api/v1/audit", authorization=f"Bearer {each}").status_code
        for each in (lost, TOKEN, "wrong")
    ]
    assert codes == [401, 200, 401]
    assert visitor.get("/metrics", authorization=f"Bearer {lost}").status_code == 200
    text = visitor.page("/").text
    assert "token of `tailrace token`" in text
    assert "tokens.json" in text
    monkeypatch.undo()
    Tokens(house.data)._file.write([])
    visitor.get("/", authorization="Bearer wrong")
    assert "token of `tailrace token`" not in visitor.page("/").text


def test_the_audit_file_names_who_did_it(tmp_path: Path) -> None:
    """GIVEN orders of several users and a token WHEN the audit file is read THEN it names each, and
    the pipeline; and the page names who has paused, not who was there last."""
    pull = {"encoding": "json", "sink": {"type": "pull"}}
    house = House(tmp_path / "data", http={"users": USERS}, pipelines={"work": pull})
    house.healthy()
    ann = Visitor(house)
    ann.log_in("ann", PASSWORD)
    control = ControlFile(house.data, "work")
    control.pause(user="ann", reason="maintenance")
    control.restart(user="bob", reason="other")
    assert "Paused by ann: maintenance" in ann.page("/console/pipelines/work").text
    token = Tokens(house.data).create("operate", timedelta(days=1), user="ann")
    order = backfills.submit(house.config, "work", "public.t", user="ann")
    backfills.set_desired_state(house.config, order.id, "pause", user="vic")

    async def drop() -> None:
        stop = threading.Event()
        clerk = asyncio.create_task(asyncio.to_thread(house.clerks["work"].run, stop))
        answer = await ann.asked(
            "POST", "/v1/pull/work/drop", content=b'{"numbers": [1]}',
            authorization=f"Bearer {token}",
        )  # fmt: skip
        assert answer.status_code == 200
        stop.set()
        await clerk

    asyncio.run(drop())
    found = {each["action"]: each for each in audit.latest(house.data, limit=10)}
    assert found["pull.drop"]["user"] == f"token {token.split('_')[1]}"
    assert found["pull.drop"]["selection"] == {"numbers": [1]}
    assert (found["backfill.pause"]["user"], found["backfill.pause"]["pipeline"]) == ("vic", "work")


def test_an_expired_token_is_refused(guarded: House) -> None:
    token = Tokens(guarded.data).create("operate", timedelta(seconds=-1), user="ann")
    header = {"authorization": f"Bearer {token}", "accept": "application/json"}
    assert Visitor(guarded).get("/api/v1/overview", **header).status_code == 401
