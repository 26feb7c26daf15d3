"""Who may see and do what: roles, sessions, forms of other sites, guesses, tokens."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tailrace.access import password
from tailrace.access.attempts import FREE
from tailrace.access.tokens import Tokens
from tailrace.console.catalog import ACTIONS, PAGES
from tailrace.control import ControlFile
from tests.unit.console.house import CHANGE, ORIGIN, PASSWORD, RUNNING, TOKEN, USERS, House, Visitor

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    import httpx

PAUSE = "/console/pipelines/shop/pause"
API_PAUSE = "/api/v1/pipelines/shop/pause"
SETTINGS = '<h2 id="settings">'
COOKIE = "tailrace_session_9090"
WRONG = "name=ann&secret=wrong"


def address_of(path: str) -> str:
    path = path.replace("{pipeline}", "shop").replace("{number}", "1").replace("{id}", "fill-1")
    path = path.replace("{reader}", "shop")
    return path.replace("{message}", CHANGE)


def in_parallel(*requests: Coroutine[None, None, httpx.Response]) -> list[int]:
    """The statuses of requests that are sent at once."""

    async def ask() -> list[httpx.Response]:
        return await asyncio.gather(*requests)

    return [each.status_code for each in asyncio.run(ask())]


def paused(house: House) -> bool:
    return ControlFile(house.data, "shop").read().paused


def test_without_users_reading_needs_no_login(house: House, anyone: Visitor) -> None:
    """GIVEN no users WHEN anyone on this machine reads THEN states are shown, and rows and buttons
    are not."""
    house.healthy()
    house.park()
    assert anyone.get("/").status_code == 200
    assert anyone.get("/status").status_code == 200
    for path in ("/console/parked/shop", "/console/parked/shop/1", "/console/audit", PAUSE):
        answer = anyone.get(path)
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/login?next=%2Fconsole%2F")
    assert anyone.get("/api/v1/parked/shop").status_code == 401
    assert PAUSE not in anyone.page("/console/pipelines/shop").source
    assert anyone.submit(PAUSE).status_code == 401
    assert not paused(house)


def test_with_users_everything_needs_a_login(guarded: House) -> None:
    """GIVEN users WHEN anything but health is asked for without a login THEN nothing is told."""
    visitor = Visitor(guarded)
    pages = [address_of(page.address) for page in PAGES]
    api = [f"/api/v1{address_of(page.path)}" for page in PAGES]
    others = ["/status", "/metrics", "/backfills", "/parked/shop", "/streams/info", "/nothing"]
    for path in [*pages, *api, *others, "/api/v1/openapi.json", "/console/live?page=/"]:
        assert visitor.get(path).status_code == (401 if path.startswith("/api") else 303), path
        assert visitor.get(path, accept="application/json").status_code == 401, path
        wrong = visitor.get(path, accept="*/*", authorization="Bearer wrong")
        assert wrong.status_code == 401, path
        assert "shop" not in wrong.text
    assert visitor.get("/health").status_code == 200
    guarded.write(replace(RUNNING, state="failed"))
    ready = visitor.get("/ready")
    assert (ready.status_code, ready.json()) == (503, {"status": "degraded"})
    assert "shop" not in visitor.get("/login").text


def test_a_viewer_may_only_read(guarded: House) -> None:
    """GIVEN a viewer WHEN all pages and actions are tried THEN pages open and no action does."""
    visitor = Visitor(guarded)
    assert visitor.log_in("vic", PASSWORD).status_code == 303
    for page in PAGES:
        if page.name not in ("tables", "doctor"):
            assert visitor.get(address_of(page.address)).status_code == 200
    csrf = visitor.csrf
    for action in ACTIONS:
        path = address_of(action.address)
        assert visitor.get(path).status_code == 403
        assert visitor.submit(path, csrf=csrf, all="true", to="earliest").status_code == 403
        api = visitor.ask(
            "POST", f"/api/v1{address_of(action.path)}", content=b"{}", x_csrf_token=csrf
        )
        assert api.status_code == 403
    for path in ("/shutdown", "/backfills", "/parked/shop/drop"):
        assert visitor.ask("POST", path, content=b"{}", x_csrf_token=csrf).status_code == 403
    assert PAUSE not in visitor.page("/console/pipelines/shop").source
    assert not guarded.audit()


def test_an_operator_may_act_and_is_recorded(guarded: House) -> None:
    visitor = Visitor(guarded)
    visitor.log_in("ann", PASSWORD)
    assert visitor.do(PAUSE, reason="x").status_code == 303
    assert paused(guarded)
    assert '"user":"ann"' in guarded.audit()


@pytest.mark.parametrize("sent", ["", "wrong", "é\udcff"])
def test_a_form_needs_the_token_of_its_session(guarded: House, sent: str) -> None:
    """GIVEN an operator's browser WHEN a form without the session's token is sent THEN nothing
    changes."""
    visitor = Visitor(guarded)
    visitor.log_in("ann", PASSWORD)
    fields = {"csrf": sent.encode("utf-8", "replace").decode()} if sent else {}
    assert visitor.submit(PAUSE, **fields).status_code == 403
    header = {"x_csrf_token": "wrong"} if sent else {}
    assert visitor.ask("POST", API_PAUSE, content=b"{}", **header).status_code == 403
    assert visitor.submit("/logout", **fields).status_code == 403
    other = Visitor(guarded)
    other.log_in("ann", PASSWORD)
    assert visitor.submit(PAUSE, csrf=other.csrf).status_code == 403
    assert not paused(guarded)
    assert (
        visitor.ask("POST", API_PAUSE, content=b"{}", x_csrf_token=visitor.csrf).status_code == 202
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:8080"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site", "origin": ORIGIN},
    ],
)
def test_forms_of_other_sites_are_refused(guarded: House, headers: dict[str, str]) -> None:
    visitor = Visitor(guarded)
    visitor.log_in("ann", PASSWORD)
    csrf = visitor.csrf
    for path in (PAUSE, "/login", "/logout"):
        answer = visitor.ask("POST", path, content=f"csrf={csrf}&name=ann&secret=x", **headers)
        assert answer.status_code == 403
    assert not paused(guarded)


@pytest.mark.parametrize(
    "path", ["/", "/login", "/console/log", "/api/v1/overview", "/static/console.js"]
)
def test_rebinding_is_refused(house: House, anyone: Visitor, path: str) -> None:
    """GIVEN a foreign name that points to this server WHEN its page asks THEN it learns nothing."""
    assert anyone.get(path, host="evil.example").status_code == 421
    assert anyone.ask("POST", path, host="evil.example").status_code == 421


def test_a_login_begins_a_new_session(guarded: House) -> None:
    """GIVEN a cookie that an attacker has planted WHEN the user logs in THEN the cookie is another
    one, and the planted one opens nothing, before and after."""
    visitor = Visitor(guarded)
    visitor.cookies[COOKIE] = "planted"
    answer = visitor.log_in("ann", PASSWORD)
    cookie = answer.headers["set-cookie"]
    for part in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"):
        assert part.lower() in cookie.lower()
    assert visitor.cookies[COOKIE] != "planted"
    attacker = Visitor(guarded)
    attacker.cookies[COOKIE] = "planted"
    assert attacker.get("/").status_code == 303
    first = visitor.cookies[COOKIE]
    visitor.log_in("ann", PASSWORD)
    assert visitor.cookies[COOKIE] != first
    attacker.cookies[COOKIE] = first
    assert attacker.get("/").status_code == 303
    assert visitor.submit("/logout", csrf=visitor.csrf).status_code == 303
    assert visitor.get("/").status_code == 303


def test_settings_and_audit_entries_need_a_login_everywhere(tmp_path: Path) -> None:
    """GIVEN a system without users, and a dropped message WHEN the pipeline is read without a login
    THEN page, API and stream have its figures, and neither settings nor audit entries."""
    house = House(tmp_path / "data")
    house.healthy()
    house.park(key="canary-key")
    operator, visitor = Visitor(house), Visitor(house)
    operator.log_in()
    operator.do("/console/parked/shop/drop", key="canary-key")
    assert "canary-key" in operator.get("/api/v1/pipelines/shop").text
    assert SETTINGS in operator.get("/console/pipelines/shop").text
    for path in ("/api/v1/pipelines/shop", "/console/pipelines/shop"):
        text = visitor.get(path).text
        assert "canary-key" not in text
        assert SETTINGS not in text
        assert "shop" in text
    document = visitor.get("/api/v1/pipelines/shop").json()
    assert (document["settings"], document["audit"]) == (None, None)
    house.stopping = True
    stream = visitor.get("/console/live?page=/console/pipelines/shop").text
    assert "shop" in stream
    assert "canary-key" not in stream
    assert SETTINGS not in stream


def test_cookies_are_for_tls_only_where_there_is_tls(tmp_path: Path) -> None:
    tls = {"certificate": tmp_path / "c.pem", "key": tmp_path / "k.pem"}
    house = House(tmp_path / "data", http={"users": USERS, "tls": tls})
    visitor = Visitor(house)
    cookie = visitor.log_in("ann", PASSWORD).headers["set-cookie"].lower()
    assert "secure" in cookie
    assert cookie.startswith(f"__host-{COOKIE}=")
    ended = visitor.submit("/logout", csrf=visitor.csrf).headers["set-cookie"].lower()
    assert "secure" in ended


def test_two_systems_of_a_host_have_a_session_each(tmp_path: Path) -> None:
    """GIVEN two systems on ports of one host WHEN a browser logs in to the second THEN it is still
    logged in to the first."""
    first = House(tmp_path / "first")
    second = House(tmp_path / "second", http={"port": 9091})
    visitor = Visitor(first)
    visitor.log_in()
    visitor.house = second
    visitor.log_in()
    visitor.house = first
    assert visitor.get("/console/audit").status_code == 200


def test_guesses_are_limited_per_address(guarded: House) -> None:
    """GIVEN an address whose logins fail WHEN it tries on THEN it has to wait, also with the right
    password; other addresses do not; a header does not change an address."""
    guarded.access.attempts._clock = lambda: 0.0
    attacker = Visitor(guarded, address="10.0.0.7")
    for _ in range(FREE + 1):
        assert attacker.log_in("ann", "wrong").status_code == 401
    answer = attacker.log_in("ann", PASSWORD)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    spoofed = attacker.ask(
        "POST", "/login", content=f"name=ann&secret={PASSWORD}", x_forwarded_for="10.9.9.9"
    )
    assert spoofed.status_code == 429
    assert Visitor(guarded, address="10.0.0.8").log_in("ann", PASSWORD).status_code == 303


def test_logins_in_parallel_are_limited_as_well(guarded: House) -> None:
    """GIVEN many wrong logins at once WHEN their answers come THEN as many were tried as one after
    another, and a page that needs no login is answered while they wait."""
    guarded.access.attempts._clock = lambda: 0.0
    attacker = Visitor(guarded, address="10.0.0.7")
    codes = in_parallel(
        *(attacker.asked("POST", "/login", content=WRONG) for _ in range(50)),
        attacker.asked("GET", "/login"),
    )
    assert codes.pop() == 200
    assert codes.count(401) == FREE + 1
    assert codes.count(429) == 49 - FREE


def test_logins_of_many_addresses_wait_outside_the_pool_of_threads(
    guarded: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN more logins at once, of one address each, than may wait WHEN their answers come THEN
    the surplus is refused."""
    monkeypatch.setattr(password, "verify", lambda *_: False)
    visitors = [Visitor(guarded, address=f"10.0.2.{n}") for n in range(60)]
    codes = in_parallel(*(each.asked("POST", "/login", content=WRONG) for each in visitors))
    assert codes.count(503) == 60 - 51
    assert codes.count(401) == 51


def test_a_viewer_has_no_more_guesses_for_an_operator(guarded: House) -> None:
    """GIVEN a viewer who logs in between guesses WHEN they go on THEN the address has to wait."""
    guarded.access.attempts._clock = lambda: 0.0
    attacker = Visitor(guarded, address="10.0.0.7")
    codes = []
    for _ in range(3):
        codes += [attacker.log_in("ann", "wrong").status_code for _ in range(FREE - 2)]
        attacker.log_in("vic", PASSWORD)
    assert codes[0] == 401
    assert codes[-1] == 429


def test_a_wrong_password_and_an_unknown_user_look_the_same(guarded: House) -> None:
    answers = [
        Visitor(guarded, address=f"10.0.1.{n}").log_in(name, "wrong password")
        for n, name in enumerate(("ann", "nobody"))
    ]
    assert {each.status_code for each in answers} == {401}
    assert answers[0].text == answers[1].text
    assert Visitor(guarded, address="10.0.1.9").log_in("", TOKEN).status_code == 401


@pytest.mark.parametrize(
    ("target", "allowed"),
    [("/console/log?range=day", True), ("//evil.example", False), ("https://evil.example", False),
     ("/\\evil.example", False), ("javascript:alert(1)", False), ("/\tx", False)],
)  # fmt: skip
def test_a_login_leads_to_this_site_only(guarded: House, target: str, allowed: bool) -> None:
    visitor = Visitor(guarded)
    answer = visitor.submit("/login", name="ann", secret=PASSWORD, next=target)
    assert answer.headers["location"] == (target if allowed else "/")


def test_no_secret_is_stored_or_shown(guarded: House, capsys: pytest.CaptureFixture[str]) -> None:
    """GIVEN a login, a token and actions WHEN files, log lines and pages are searched THEN none has
    a password, a cookie or a token."""
    token = Tokens(guarded.data).create("operate", timedelta(days=1), user="ann")
    visitor = Visitor(guarded)
    visitor.log_in("ann", "a wrong password")
    visitor.log_in("ann", PASSWORD)
    visitor.do(PAUSE, reason="x")
    visitor.ask("POST", API_PAUSE, content=b"{}", authorization=f"Bearer {token}")
    secrets = [PASSWORD, "a wrong password", TOKEN, token, visitor.cookies[COOKIE]]
    texts = [path.read_bytes() for path in guarded.data.rglob("*") if path.is_file()]
    texts += [visitor.get(f"/api/v1{address_of(page.path)}").content for page in PAGES]
    texts.append("".join(capsys.readouterr()).encode())
    for secret in secrets:
        assert not [text for text in texts if secret.encode() in text]
