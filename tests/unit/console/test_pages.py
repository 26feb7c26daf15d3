"""Every page, with a healthy system and with one in trouble."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tailrace.console import trends
from tailrace.console.catalog import PAGES
from tailrace.console.site import Site
from tailrace.console.trends import Trends
from tailrace.console.views import source
from tailrace.finding import Finding, Severity
from tailrace.parking.parking import folder_of, store_of
from tests.unit.console.house import CHANGE, HASH, House, Visitor

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.console.house import Html

PARAMETERS = {"pipeline": "shop", "number": "1", "message": CHANGE}
OWN = {"tables", "doctor"}
"""Pages that ask PostgreSQL: tests/integration/test_console.py."""
ADDRESSES = [
    re.sub(r"\{(\w+)\}", lambda match: PARAMETERS[match[1]], page.address)
    for page in PAGES
    if page.name not in OWN
]
REPLICATION = {"followers": ["127.0.0.1:7432"], "mode": "sync"}
XSS = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("trouble", [False, True])
def test_a_page(house: House, operator: Visitor, address: str, trouble: bool) -> None:
    """GIVEN a system, healthy or in trouble, WHEN a page is loaded THEN it is whole: landmarks, a
    heading, labelled fields, a table beside each chart, and nothing inline or from outside."""
    house.park()
    if trouble:
        house.troubled()
    else:
        house.healthy()
    house.console._trends.sample()
    answer = operator.get(address)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"].split("; ")
    assert policy[0] == "default-src 'self'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    check_markup(operator.page(address))


def check_markup(page: Html) -> None:
    for landmark in ("header", "nav", "main", "footer", "h1"):
        assert len(page.all(landmark)) == 1, landmark
    assert page.all("html") == [{"lang": "en"}]
    for tag, attributes in page.elements:
        assert tag != "style"
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        for name in ("src", "href", "action"):
            assert attributes.get(name, "/").startswith(("/", "#", "?")), (tag, attributes)
    assert [each["src"] for each in page.all("script")] == ["/static/console.js"]
    labels = page.source.count("<label")
    fields = [each for each in page.all("input") if each.get("type") != "hidden"]
    assert len(fields) == labels
    charts = [each for each in page.all("svg") if each.get("class") == "chart"]
    assert all(each["aria-label"] for each in charts)
    assert page.source.count('<figure class="graph">') <= len(page.all("table"))
    for each in page.all("th"):
        assert each["scope"] in ("col", "row")


def test_a_healthy_system(house: House, anyone: Visitor) -> None:
    house.healthy()
    page = anyone.page("/")
    assert "Everything is well" in page.text
    assert "problem" not in page.text
    assert "shop" in page.text


def test_what_is_wrong_is_named_with_the_fix(tmp_path: Path) -> None:
    """GIVEN a pipeline that failed, a dead capture and a full slot WHEN the overview is loaded THEN
    it names each with its code and what to do."""
    house = House(tmp_path / "data", replication=REPLICATION)
    house.park()
    house.troubled()
    text = Visitor(house).page("/").text
    for part in (
        "Process capture: GAP",
        "Move the log folder away",
        "Pipeline shop: failed (POISONED)",
        "Filter it out, or raise the sink's limits.",
        "PostgreSQL keeps 2,048 MiB of WAL",
        "3 messages are parked",
        "Service schemas: failed",
        "0 of 1 needed followers connected",
        "The last backfill of public.t has failed",
    ):
        assert part in text, part
    found = Visitor(house).get("/api/v1/overview").json()["problems"]
    assert all(each["hint"] for each in found if each["severity"] == "error" and each["ready"])


def test_every_number_has_the_name_of_its_metric(house: House, anyone: Visitor) -> None:
    """GIVEN the overview WHEN the names on it are compared THEN /metrics has each of them, and the
    page explains each."""
    house.healthy()
    page = anyone.page("/")
    shown = {each["data-metric"] for each in page.all("data")}
    assert {"tailrace_lag_bytes", "tailrace_lag_seconds", "rate(tailrace_events_total)"} <= shown
    exposed = anyone.get("/metrics").text
    for metric in shown:
        name = re.sub(r"^rate\((.*)\)$", r"\1", metric).partition("{")[0]
        assert name.startswith("/status") or f"# TYPE {name.removesuffix('_total')}" in exposed, (
            name
        )
        assert f"<code>{metric}</code>".replace('"', "&#34;") in page.source


def test_trends_are_drawn_with_a_table(house: House, anyone: Visitor) -> None:
    house.healthy()
    for at in range(5):
        house.console._trends._clock = partial(float, 1000 + 10 * at)
        house.console._trends.sample()
    page = anyone.page("/")
    charts = [each for each in page.all("svg") if each.get("class") == "chart"]
    assert len(charts) >= 4
    labels = {each["aria-label"] for each in charts}
    assert "Latency, worst pipeline: p50, p99, up to 250 ms" in labels
    assert not [each for each in labels if ": ," in each]
    assert 'class="n"></th>' not in page.source
    assert anyone.page("/?range=day").text.count("No samples yet.") >= 4


def test_users_texts_are_never_markup(tmp_path: Path) -> None:
    """GIVEN markup in error texts, names of tables, keys, payloads and reasons WHEN all pages are
    loaded THEN it is shown as text."""
    house = House(tmp_path / "data", replication=REPLICATION)
    house.park(key=XSS)
    house.troubled(XSS)
    visitor = Visitor(house)
    visitor.log_in()
    answer = visitor.do("/console/pipelines/shop/pause", reason=XSS)
    assert answer.status_code == 303
    seen = 0
    for address in [*ADDRESSES, "/console/parked/shop/1", answer.headers["location"]]:
        page = visitor.page(address)
        check_markup(page)
        assert not [each for each in page.all("img") if each.get("src") == "x"], address
        seen += XSS in page.text
    assert seen >= 6
    query = visitor.get("/console/parked/shop?code=%22%3E%3Cscript%3E")
    assert "<script>" not in query.text.replace('<script src="', "")


def test_names_of_tables_and_columns_are_never_markup(
    house: House, anyone: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN tables, columns and findings whose names are markup WHEN their pages are loaded THEN
    the names are text."""
    table = {
        "namespace": XSS, "name": XSS, "rows": None, "bytes": 8192, "columns": [f"{XSS} text"],
        "replica_identity": "none: the table has no primary key",
    }  # fmt: skip
    finding = Finding(check="x", severity=Severity.ERROR, finding=XSS, fix=XSS, subject=XSS)
    monkeypatch.setattr(source, "session", lambda _system: nullcontext())
    monkeypatch.setattr(source, "read_tables", lambda *_: [table])
    monkeypatch.setattr(source, "run", lambda *_: [finding])
    for name, heading in (("tables", "8.0 KiB"), ("doctor", "The source needs attention")):
        page = anyone.page(f"/console/{name}")
        check_markup(page)
        assert heading in page.text
        assert page.text.count(XSS) >= 2
        assert not [each for each in page.all("img") if each.get("src") == "x"]


def test_a_page_that_does_not_exist(house: House, anyone: Visitor) -> None:
    answer = anyone.get("/console/pipelines/shopp")
    assert answer.status_code == 404
    assert "Configured pipelines: shop." in answer.text
    assert anyone.get("/console/nothing").status_code == 404
    assert anyone.get("/nothing", accept="application/json").json()["endpoints"]


def test_postgresql_that_does_not_answer_is_named(house: House, anyone: Visitor) -> None:
    for name in sorted(OWN):
        answer = anyone.get(f"/console/{name}")
        assert answer.status_code == 502
        assert "UNREACHABLE" in answer.text
        assert "tailrace doctor" in answer.text


def test_static_files(anyone: Visitor) -> None:
    for name, kind in (
        ("console.css", "text/css"),
        ("console.js", "javascript"),
        ("icon.svg", "svg"),
    ):
        answer = anyone.get(f"/static/{name}")
        assert answer.status_code == 200
        assert kind in answer.headers["content-type"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
    assert anyone.get("/static/../trends.py").status_code == 404


def test_settings_are_shown_without_secrets(tmp_path: Path) -> None:
    """GIVEN secrets in every place of the settings WHEN the page is loaded THEN none is on it."""
    dsn = "postgresql://u:canary-dsn@127.0.0.1:1/x"
    sinks = {
        "shop": {"type": "nats", "url": "nats://u:canary-url@127.0.0.1:1"},
        "hooks": {
            "type": "http",
            "url": "https://example.com/canary-path",
            "headers": {"authorization": "canary-header"},
        },
        "kafka": {
            "type": "kafka",
            "bootstrap": "k:9092",
            "password": "canary-kafka",
            "user": "u",
            "tls": True,
            "settings": {"ssl.key.password": "canary-librdkafka"},
        },
        "redis": {"type": "redis", "url": "redis://u:canary-redis@127.0.0.1:1"},
        "pull": {"type": "pull", "tokens": {"w": "canary-token-0123456789"}},
        "pg": {"type": "postgres", "dsn": "postgresql://u:canary-pg@127.0.0.1/x"},
        "rabbit": {"type": "rabbitmq", "url": "amqp://u:canary-rabbit@127.0.0.1:1"},
    }
    pipelines = {}
    for name, sink in sinks.items():
        pipelines[name] = {"encoding": "json", "sink": sink}
    house = House(
        tmp_path / "data", source={"dsn": dsn}, pipelines=pipelines,
        http={"users": {"ann": {"role": "operator", "password": HASH}}},
        spark={"conf": {"spark.hadoop.fs.s3a.secret.key": "canary-spark"}},
    )  # fmt: skip
    visitor = Visitor(house)
    visitor.log_in("ann", "correct horse")
    for address in (
        "/console/settings",
        "/api/v1/settings",
        *(f"/console/pipelines/{n}" for n in sinks),
    ):
        text = visitor.get(address).text
        assert "canary" not in text, (address, re.findall(r".{60}canary.{20}", text, re.S))
        assert "scrypt" not in text
        assert "0123456789abcdef" not in text
    assert "http.port" in visitor.page("/console/settings").text


def test_the_audit_file_is_shown(house: House, operator: Visitor) -> None:
    operator.do("/console/pipelines/shop/pause", reason="maintenance")
    with (house.data / "audit.jsonl").open("a") as file:
        file.write("not json\n[]\n")
    text = operator.page("/console/audit").text
    assert "pipeline.pause" in text
    assert "maintenance" in text
    assert "pipeline.pause" not in operator.page("/console/audit?action=parked").text
    entries = operator.get("/api/v1/audit").json()["entries"]
    assert [each["action"] for each in entries] == ["pipeline.pause"]


def test_a_page_is_refreshed_over_server_sent_events(house: House, anyone: Visitor) -> None:
    """GIVEN an open page WHEN its stream is read THEN the first event is the changing part of the
    page, and the stream ends with the process."""
    house.healthy()
    calls = iter([False, False, True])
    from tailrace.access.access import Access  # noqa: PLC0415 - here alone
    from tailrace.console.system import System  # noqa: PLC0415

    access = Access(house.config, "t" * 16)
    trends = Trends(house.data, house.overview.read)
    system = System(house.config, house.overview.read, trends, access)
    site = Site(system, stopping=lambda: next(calls, True))
    house.application.router.routes[:] = site.routes()
    answer = anyone.get("/console/live?page=/%3Frange%3Dday")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[1].startswith("event: page\ndata: ")
    html = json.loads(events[1].partition("data: ")[2])
    assert 'data-part="path"' in html
    assert "<header" not in html
    for page in ("/console/settings", "/nothing", "//evil", "", "//[", "//a%E2%84%80b"):
        assert anyone.get(f"/console/live?page={page}").status_code == 404


def test_a_link_has_no_page_say_anything(house: House, operator: Visitor) -> None:
    """GIVEN a link with a text WHEN it is opened THEN the page does not show the text; what an
    action has done is shown once."""
    house.healthy()
    assert "All is deleted" not in operator.page("/?done=All+is+deleted").text
    shown = operator.page(operator.do("/console/pipelines/shop/pause").headers["location"])
    [status] = [each for each in shown.all("p") if each.get("role") == "status"]
    assert status["class"] == "note good"
    again = operator.page("/console/pipelines/shop")
    assert not [each for each in again.all("p") if each.get("role") == "status"]


def test_an_unexpected_error_is_a_page_in_a_browser(
    house: House, operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a bug WHEN a browser opens the page THEN it shows a page, and a program gets JSON."""
    house.healthy()
    monkeypatch.setattr(trends.Trends, "points", lambda *_: 1 / 0)
    page = operator.get("/")
    assert (page.status_code, page.headers["content-type"]) == (500, "text/html; charset=utf-8")
    assert "UNEXPECTED: ZeroDivisionError" in page.text
    program = operator.get("/api/v1/overview")
    assert program.json()["error"].startswith("UNEXPECTED")
    assert operator.submit("/logout").headers["content-type"].startswith("text/html")


def test_documents_are_not_stored_in_caches(house: House, operator: Visitor) -> None:
    house.park()
    for path in ("/api/v1/messages", "/parked/shop/1", "/status", "/console/parked/shop/1"):
        headers = operator.get(path).headers
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"


def test_parked_messages_of_every_pipeline_that_has_some(tmp_path: Path) -> None:
    """GIVEN a store that is damaged, and one of a pipeline that was removed from the settings, WHEN
    the page is loaded THEN it has the messages of the others, and why the first is unknown."""
    sink = {"type": "nats", "url": "nats://127.0.0.1:1"}
    house = House(tmp_path, pipelines={name: {"sink": sink} for name in ("broken", "shop")})
    house.park()
    shutil.copytree(folder_of(house.data, "shop"), folder_of(house.data, "removed"))
    file = store_of(folder_of(house.data, "broken"))
    file.parent.mkdir()
    file.write_bytes(b"garbage " * 4096)
    visitor = Visitor(house)
    visitor.log_in()
    found = {each["pipeline"]: each for each in visitor.get("/api/v1/parked").json()["pipelines"]}
    assert list(found) == ["broken", "shop", "removed"]
    assert [each["messages"] for each in found.values()] == [None, 3, 3]
    assert [each["configured"] for each in found.values()] == [True, True, False]
    assert found["broken"]["error"]["code"] == "CORRUPT"
    page = visitor.page("/console/parked")
    check_markup(page)
    for text in ("not in the settings", "broken: CORRUPT"):
        assert text in page.text
    assert "payload of a1" in visitor.page("/console/parked/removed/1").text
