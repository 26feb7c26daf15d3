"""`tailrace parked` and the endpoints: what operators see, and what they order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tailrace import audit
from tailrace.errors import ConfigError
from tailrace.parking import control
from tailrace.parking.order import Orders
from tailrace.parking.parking import folder_of
from tests.command import call
from tests.unit.parking.system import System, end_of, messages
from tests.unit.run.test_endpoints import Site

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

PIPELINE = "bridge"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def system(data: Path) -> System:
    """Two messages of key a, and one of key b, are parked."""
    made = System(folder_of(data, PIPELINE))
    made.sink.bad = {"a1", "b1"}
    made.deliver([("a1", "a"), ("b1", "b"), ("a2", "a"), ("c1", "c")], lsn=100)
    made.plan()
    return made


@pytest.fixture
def settings(data: Path, tmp_path: Path) -> Path:
    file = tmp_path / "tailrace.yml"
    sink = {"type": "http", "url": "https://example.com/"}
    file.write_text(json.dumps({"data": str(data), "pipelines": {PIPELINE: {"sink": sink}}}))
    return file


def parked(settings: Path, *arguments: object, code: int = 0, stdin: str = "") -> str:
    done = call("parked", *arguments, "--config", settings, stdin=stdin)
    assert done.returncode == code, done.stderr
    return done.stdout if not code else done.stderr


def waiting(system: System) -> list[str]:
    return [order.action for order in Orders(system.folder / "orders").all()]


def test_messages_are_listed_in_pages(system: System, settings: Path) -> None:
    shown = parked(settings, "ls", PIPELINE, "--limit", 2)
    assert "3 parked" in shown
    assert "1 of them wait for others" in shown
    assert "More: --after 2" in shown
    rest = json.loads(parked(settings, "ls", PIPELINE, "--after", 2, "--json"))
    assert [each["id"] for each in rest] == ["a2"]
    assert (rest[0]["state"], rest[0]["attempts"], rest[0]["key"]) == ("held", 0, "a")
    chosen = json.loads(parked(settings, "ls", PIPELINE, "--code", "HTTP_422", "--json"))
    assert [each["id"] for each in chosen] == ["a1", "b1"]
    assert json.loads(parked(settings, "ls", PIPELINE, "--destination", "/o*r", "--json")) == []


def test_a_message_is_shown_with_its_payload(system: System, settings: Path) -> None:
    for name in ("b1", 2):
        shown = json.loads(parked(settings, "show", PIPELINE, name))
        assert shown["payload"] == "payload of b1"
        assert shown["last_error"]["code"] == "HTTP_422"
    assert "message x is not parked" in parked(settings, "show", PIPELINE, "x", code=2)


def test_a_retry_passes_through_the_pipeline(system: System, settings: Path, data: Path) -> None:
    system.sink.bad = set()
    assert "1 messages" in parked(settings, "retry", PIPELINE, "--id", "a1")
    assert waiting(system) == ["retry"]
    system.deliver([("a3", "a")], lsn=200)
    assert system.sink.received == ["c1", "a1", "a2", "a3"]
    [order] = json.loads(parked(settings, "orders", PIPELINE, "--json"))
    assert (order["action"], order["matched"], order["delivered"]) == ("retry", 2, 2)
    entry = json.loads((data / audit.FILE).read_text())
    assert (entry["action"], entry["pipeline"]) == ("parked.retry", PIPELINE)
    assert entry["selection"] == {"ids": ["a1"]}
    assert entry["user"]


def test_what_is_parked_after_an_order_is_not_part_of_it(system: System, settings: Path) -> None:
    parked(settings, "drop", PIPELINE, "--all", "--yes")
    guard = system.guard()
    system.sink.bad = {"d1"}
    guard.write(messages([("d1", "d")], lsn=200))
    guard.flush()
    system.position = end_of(200)
    assert [name for name, _, _ in system.parked()] == ["d1"]


def test_an_order_says_which_messages(system: System, settings: Path) -> None:
    assert "say which messages" in parked(settings, "retry", PIPELINE, code=2)
    both = ("--all", "--key", "a")
    assert "say which messages" in parked(settings, "retry", PIPELINE, *both, code=2)
    assert "no parked message matches" in parked(settings, "retry", PIPELINE, "--key", "z", code=2)
    assert "there is no pipeline" in parked(settings, "ls", "brige", code=2)
    assert waiting(system) == []


def test_messages_are_dropped_only_after_a_yes(system: System, settings: Path) -> None:
    parked(settings, "drop", PIPELINE, "--key", "b", code=1, stdin="n\n")
    assert waiting(system) == []
    parked(settings, "drop", PIPELINE, "--key", "b", stdin="y\n")
    system.plan()
    assert [name for name, _, _ in system.parked()] == ["a1", "a2"]


@pytest.mark.parametrize("size", [1 << 20, 1])
def test_messages_are_exported(
    system: System, settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr("tailrace.console.views.parked._PAGE_BYTES", size)
    file = tmp_path / "parked.jsonl"
    assert "2 messages in" in parked(settings, "export", PIPELINE, "--key", "a", "--to", file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["payload"] for each in lines] == ["payload of a1", "payload of a2"]
    assert file.stat().st_mode & 0o777 == 0o600


def test_nothing_was_ever_parked(data: Path, settings: Path) -> None:
    assert "0 parked" in parked(settings, "ls", PIPELINE)
    assert parked(settings, "orders", PIPELINE, "--json").strip() == "[]"


@pytest.fixture
def site(system: System, data: Path) -> Site:
    return Site(data)


def test_pages_over_http(site: Site) -> None:
    first = site.get(f"/parked/{PIPELINE}?limit=2")
    assert first["totals"] == {"messages": 3, "held": 1, "bytes": 39}
    assert [each["id"] for each in first["messages"]] == ["a1", "b1"]
    second = site.get(f"/parked/{PIPELINE}?limit=2&after={first['next']}")
    assert ([each["id"] for each in second["messages"]], second["next"]) == (["a2"], None)
    assert [each["id"] for each in site.get(f"/parked/{PIPELINE}?key=b")["messages"]] == ["b1"]
    assert site.get(f"/parked/{PIPELINE}/1")["payload"] == "payload of a1"
    assert site.get(f"/parked/{PIPELINE}/orders") == []


def test_export_over_http(site: Site) -> None:
    """One answer has all messages with their payloads."""
    answer = site.ask("GET", f"/parked/{PIPELINE}/export?key=a")
    assert answer.headers["content-type"].startswith("application/jsonl")
    documents = [json.loads(line) for line in answer.text.splitlines()]
    assert [each["payload"] for each in documents] == ["payload of a1", "payload of a2"]
    assert len(site.ask("GET", f"/parked/{PIPELINE}/export").text.splitlines()) == 3
    assert site.ask("GET", "/parked/other/export").status_code == 404


def test_orders_over_http(site: Site, system: System) -> None:
    def ask(action: str, **body: Any) -> httpx.Response:
        return site.ask("POST", f"/parked/{PIPELINE}/{action}", body=json.dumps(body))

    assert ask("retry", ids=["a1"]).json()["matched"] == 1
    assert ask("drop", key="b").status_code == 202
    assert waiting(system) == ["retry", "drop"]
    for body in ({}, {"all": True, "key": "a"}, {"keys": "a"}):
        assert ask("retry", **body).status_code == 400
    assert ask("retry", key="z").status_code == 404
    system.sink.bad = set()
    system.deliver([], lsn=200)
    assert system.sink.received == ["c1", "a1", "a2"]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (f"/parked/{PIPELINE}?limit=0x", 400),
        (f"/parked/{PIPELINE}?limit=1001", 400),
        (f"/parked/{PIPELINE}/9", 404),
        ("/parked/other", 404),
        (f"/parked/{PIPELINE}/x", 400),
    ],
)
def test_invalid_requests(site: Site, path: str, code: int) -> None:
    assert site.ask("GET", path).status_code == code


@pytest.mark.parametrize("path", ["", "/1", "/orders", "/export"])
def test_parked_messages_need_the_token(site: Site, path: str) -> None:
    assert site.ask("GET", f"/parked/{PIPELINE}{path}", token="").status_code == 401


def test_parked_messages_are_counted_in_the_status(site: Site) -> None:
    [figures] = site.get("/status")["pipelines"].values()
    assert (figures["parked_messages"], figures["parked_bytes"]) == (3, 39)


def test_files_are_for_their_owner(system: System) -> None:
    for path in (system.folder, *system.folder.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize("name", ["", ".", "..", "../parked/bridge", "none", "a" * 300, "\x00"])
def test_a_name_of_a_request_is_not_a_path(system: System, data: Path, name: str) -> None:
    """GIVEN parked messages WHEN those of a name that is no pipeline's are asked for THEN the
    answer is that there is no such pipeline."""
    with pytest.raises(ConfigError, match="there is no pipeline"):
        control.listing(Site(data).config, name)
