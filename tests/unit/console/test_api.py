"""`/api/v1`: the same as the pages, and its description."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from starlette.routing import Route

from tailrace.control import ControlFile
from tests.unit.console.house import CHANGE, TOKEN, USERS, House, Visitor

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

BEARER = {"authorization": f"Bearer {TOKEN}"}


def post(visitor: Visitor, path: str, content: bytes = b"{}", **headers: str) -> httpx.Response:
    return visitor.ask("POST", f"/api/v1{path}", content=content, accept="*/*", **BEARER, **headers)


def test_the_description_is_that_of_the_routes(house: House, anyone: Visitor) -> None:
    """GIVEN the routes of the application WHEN they are compared with the description THEN both
    have the same paths, methods and parameters."""
    found: Any = anyone.get("/api/v1/openapi.json").json()
    assert found["openapi"].startswith("3.1")
    described = {(path, method) for path, methods in found["paths"].items() for method in methods}
    routes = {
        (route.path, method.lower())
        for route in house.application.routes
        if isinstance(route, Route) and route.path.startswith("/api/v1/")
        for method in (route.methods or set()) - {"HEAD"}
    } - {("/api/v1/openapi.json", "get")}
    assert described == routes
    drop = found["paths"]["/api/v1/parked/{pipeline}/drop"]["post"]
    assert {"200", "202", "400", "413", "421"} <= set(drop["responses"])
    assert "x-csrf-token" in {each["name"] for each in drop["parameters"]}
    assert found["components"]["securitySchemes"]["session"]["name"] == house.access.cookie
    ids = []
    for path, methods in found["paths"].items():
        for operation in methods.values():
            ids.append(operation["operationId"])
            named = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert named == set(re.findall(r"\{(\w+)\}", path))
    assert len(ids) == len(set(ids))


def test_every_document_is_json(house: House, anyone: Visitor) -> None:
    house.park()
    house.healthy()
    paths: Any = anyone.get("/api/v1/openapi.json").json()["paths"]
    for path, methods in paths.items():
        if "get" in methods and not path.endswith(("/tables", "/doctor")):
            address = path.replace("{pipeline}", "shop").replace("{number}", "1")
            address = address.replace("{message}", CHANGE)
            answer = anyone.get(address, **BEARER)
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "application/json"


def test_an_action_and_its_effect(house: House, anyone: Visitor) -> None:
    """GIVEN a program with the token WHEN it asks with dry_run THEN it sees the effect, and without
    it the action is done."""
    house.healthy()
    body = b'{"to": "earliest", "reason": "new index"}'
    shown = post(anyone, "/pipelines/shop/rewind?dry_run=true", body)
    assert shown.status_code == 200
    assert "12 changes are delivered again; 12 follow." in shown.json()["effect"]
    assert ControlFile(house.data, "shop").read().moves == 0
    done = post(anyone, "/pipelines/shop/rewind", body)
    assert (done.status_code, done.json()["repeated"]) == (202, 12)
    assert ControlFile(house.data, "shop").read().moves == 1
    assert post(anyone, "/pipelines/shop/pause", b"").status_code == 202


@pytest.mark.parametrize("value", ["true", "True", "TRUE", "1"])
def test_a_dry_run_in_any_spelling_orders_nothing(
    house: House, anyone: Visitor, value: str
) -> None:
    """GIVEN clients that write booleans as their languages do WHEN they ask for a dry run THEN they
    see the effect, and no message is dropped."""
    house.healthy()
    house.park()
    shown = post(anyone, f"/parked/shop/drop?dry_run={value}", b'{"all": true}')
    assert (shown.status_code, "effect" in shown.json()) == (200, True)
    assert not house.audit()


@pytest.mark.parametrize(
    "query", ["dry_run=x", "dry_run=", "dry_run=yes", "dryrun=true", "dry_run=true&dry_run=false",
              "dry_run=true&force=true"],
)  # fmt: skip
def test_an_action_refuses_parameters_that_it_does_not_know(
    house: House, anyone: Visitor, query: str
) -> None:
    house.healthy()
    house.park()
    refused = post(anyone, f"/parked/shop/drop?{query}", b'{"all": true}')
    assert refused.status_code == 400
    assert "dry_run" in refused.json()["error"]
    assert not house.audit()
    done = post(anyone, "/parked/shop/drop?dry_run=False", b'{"all": true}')
    assert done.status_code == 202


def test_what_is_wrong_is_an_error_with_a_status(house: House, anyone: Visitor) -> None:
    house.healthy()
    for path, content, code in (
        ("/pipelines/shop/rewind", b"{}", 400),
        ("/pipelines/shop/rewind", b'{"to": 1}', 400),
        ("/pipelines/shop/rewind", b'{"to": "now", "x": 1}', 400),
        ("/pipelines/shop/rewind", b"not json", 400),
        ("/pipelines/none/pause", b"{}", 404),
        ("/pipelines/shop/skip", b'{"to": "earliest"}', 409),
        ("/backfills/none/cancel", b"{}", 404),
        ("/backfills/start", b'{"pipeline": "shop", "table": "t", "rate": 1e999}', 400),
        ("/backfills/start", b'{"pipeline": "none", "table": "t"}', 404),
        ("/parked/shop/drop", b"{}", 400),
        ("/parked/shop/drop", b'{"all": true, "code": "x"}', 400),
        ("/pipelines/shop/pause", b" " * 100_000, 413),
    ):
        answer = post(anyone, path, content)
        assert answer.status_code == code, (path, content, answer.text)
        assert answer.json()["error"]
    for path in (
        f"parked/shop/{'9' * 20}",
        f"parked/shop/{'9' * 5000}",
        f"parked/shop?limit={'9' * 5000}",
        "v1/pull/work/exhausted?limit=" + "9" * 5000,
    ):
        number = anyone.get(f"/{path}", **BEARER)
        assert number.status_code == (404 if "pull" in path else 400), path
        assert "whole number" in number.text or "there is no pipeline" in number.text
    assert anyone.get("/api/v1/parked/shop?limit=x", **BEARER).status_code == 400
    assert anyone.get("/api/v1/tables", accept="*/*").status_code == 502


def test_the_description_says_what_needs_a_login(house: House, tmp_path: Path) -> None:
    """GIVEN systems with and without users WHEN their descriptions are read THEN what is public
    without users needs a token or a session with them."""
    guarded = House(tmp_path / "guarded", http={"users": USERS})

    def secured(described: House) -> bool:
        asked = Visitor(described).get("/api/v1/openapi.json", **BEARER).json()
        return "security" in asked["paths"]["/api/v1/overview"]["get"]

    assert (secured(house), secured(guarded)) == (False, True)
