"""The page Messages, and the trace of one change."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tailrace.console.views import messages
from tailrace.log.store import LocalStore
from tests.fix_log import TestLog, insert, message, relation, transaction, update
from tests.unit.console.house import CHANGE, RUNNING, House, Visitor
from tests.unit.console.test_pages import XSS, check_markup

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from tailrace.position import Position

PIPELINES = {
    "shop": {"sink": {"type": "nats", "url": "nats://127.0.0.1:1"}},
    "others": {"tables": ["public.other"], "sink": {"type": "nats", "url": "nats://127.0.0.1:1"}},
    "large": {
        "where": "id > 10", "shape": "plain", "encoding": "json",
        "sink": {"type": "nats", "url": "nats://127.0.0.1:1"},
    },
}  # fmt: skip


def operator_of(house: House) -> Visitor:
    visitor = Visitor(house)
    assert visitor.log_in().status_code == 303
    return visitor


def ids(visitor: Visitor, query: str = "") -> list[str]:
    return [each["id"] for each in visitor.get(f"/api/v1/messages{query}").json()["messages"]]


def test_the_newest_changes_page_by_page(house: House, operator: Visitor) -> None:
    """GIVEN a log WHEN the pages of Messages are read THEN they have all its changes, the newest
    first, and the last one has no link to an older one."""
    house.healthy()
    expected = [each.event_id for each in reversed(house.folder.positions)]
    assert ids(operator) == expected
    found, query = [], "?limit=5"
    while True:
        page = operator.get(f"/api/v1/messages{query}").json()
        found += [each["id"] for each in page["messages"]]
        if page["older"] is None:
            break
        query = f"?limit=5&before={page['older']}"
    assert found == expected
    html = operator.page("/console/messages?limit=5")
    check_markup(html)
    assert "public.t1" in html.text
    assert f"?before={expected[4]}" in html.source.replace("&amp;", "")
    assert "data-live" in html.source
    assert "data-live" not in operator.page(f"/console/messages?before={CHANGE}").source


def test_a_filter(house: House, operator: Visitor) -> None:
    house.healthy()
    assert ids(operator, "?key=10") == [CHANGE]
    assert len(ids(operator, "?table=t1&op=insert&text=x")) == 12
    for nothing in ("?table=other", "?op=delete", "?text=nowhere", "?key=1%27"):
        assert ids(operator, nothing) == []
    assert "No change matches" in operator.page("/console/messages?table=other").text
    many = ",".join(["t1"] * 21)
    assert len(ids(operator, f"?table={many[3:]}")) == 12
    for wrong in (
        f"?table={many}",
        f"?table={'t' * 201}",
        "?op=merge",
        "?before=0/1",
        "?limit=501",
        "?before=%00",
    ):
        assert operator.get(f"/api/v1/messages{wrong}").status_code == 400


def test_before_capture_has_created_the_log(tmp_path: Path) -> None:
    house = House(tmp_path / "data", log={"path": str(tmp_path / "none")})
    visitor = operator_of(house)
    assert "The log has no changes yet." in visitor.page("/console/messages").text
    assert visitor.get(f"/console/messages/{CHANGE}").status_code == 404


def test_rows_need_a_login(house: House, anyone: Visitor) -> None:
    """GIVEN a system without users WHEN rows, their stream or a trace are asked for without a login
    THEN they are refused."""
    house.healthy()
    for path in ("messages", f"messages/{CHANGE}"):
        assert anyone.get(f"/api/v1/{path}").status_code == 401
        assert anyone.get(f"/console/{path}").status_code == 303
        assert anyone.get(f"/console/live?page=/console/{path}").status_code in (303, 401)


def test_readers_of_messages_wait_outside_the_pool_of_threads(
    house: House, operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a filter that takes long WHEN more browsers than the server has threads ask for it
    THEN the overview is answered meanwhile, and they are answered at last."""
    house.healthy()
    answered, page = threading.Event(), messages._page
    monkeypatch.setattr(messages, "_page", lambda *given: answered.wait() and page(*given))

    async def ask() -> list[httpx.Response]:
        waiting = [
            asyncio.create_task(operator.asked("GET", path))
            for path in ["/console/messages", "/api/v1/messages"] * 25
        ]
        await asyncio.sleep(0)
        overview = await operator.asked("GET", "/")
        answered.set()
        return [overview, *await asyncio.gather(*waiting)]

    try:
        assert {each.status_code for each in asyncio.run(ask())} == {200}
    finally:
        answered.set()


def traced(tmp_path: Path) -> tuple[House, Visitor, list[Position]]:
    house = House(tmp_path / "data", pipelines=PIPELINES)
    house.healthy()
    return house, operator_of(house), house.folder.positions


def test_the_trace_of_a_change(tmp_path: Path) -> None:
    """GIVEN a pipeline that has delivered, one of another table, and one that has never run WHEN a
    change is traced THEN each says what it has done with it, and why, and the log where it is."""
    _, visitor, positions = traced(tmp_path)
    found = visitor.get(f"/api/v1/messages/{CHANGE}").json()
    states = {each["pipeline"]: (each["state"], each["why"]) for each in found["deliveries"]}
    assert states["shop"] == ("delivered", "")
    assert states["others"] == ("not selected", "`tables` does not select public.t1.")
    assert states["large"] == ("not yet", "The pipeline has never run.")
    assert found["place"]["segment"].endswith(".seg")
    assert found["place"]["changes"] == 2
    assert found["change"]["key"] == {"id": "10"}
    page = visitor.page(f"/console/messages/{CHANGE}")
    check_markup(page)
    for part in ("delivered", "does not select", found["place"]["segment"], "id > 10"):
        assert part in page.text, part
    assert positions[2].event_id == CHANGE


def test_a_change_that_is_not_delivered_yet(tmp_path: Path) -> None:
    house = House(tmp_path / "data", pipelines=PIPELINES)
    house.healthy()
    positions = house.folder.positions
    other = House(tmp_path / "other", pipelines=PIPELINES)
    other.folder.delivered(positions[5])
    other.write(replace(RUNNING, state="failed", code="POISONED", message="too large"))
    visitor = operator_of(other)
    last = visitor.get(f"/api/v1/messages/{positions[-1].event_id}").json()["deliveries"][0]
    assert last["state"] == "not yet"
    assert "POISONED: too large" in last["why"]
    assert str(positions[5]) in last["why"]
    assert visitor.get(f"/api/v1/messages/{CHANGE}").json()["deliveries"][0]["state"] == "delivered"


def test_a_change_that_is_parked(tmp_path: Path) -> None:
    """GIVEN a change whose message is parked WHEN it is traced THEN the reason is there, although
    the pipeline is past it."""
    house, visitor, _ = traced(tmp_path)
    made = house.park()
    made.sink.bad.add("of-its-shape")
    made.deliver([("of-its-shape", "z")], lsn=0x1200)
    made.plan()
    found = visitor.get(f"/api/v1/messages/{CHANGE}").json()["deliveries"][0]
    assert (found["state"], found["why"]) == ("parked", "HTTP_422: the receiver answers 422")
    link = f"/console/parked/shop/{found['parked']}"
    assert link in visitor.page(f"/console/messages/{CHANGE}").source
    assert "of-its-shape" in visitor.page(link).text


def test_a_change_that_the_log_does_not_hold(house: House, operator: Visitor) -> None:
    house.healthy()
    for number in ("0000000000000001-0", "ffffffffffffffff-0", "0000000000001200-7"):
        answer = operator.get(f"/console/messages/{number}")
        assert answer.status_code == 404
        assert "there is no change" in answer.text
    assert operator.get("/api/v1/messages/0-0").status_code == 400


def test_the_message_that_a_pipeline_makes(tmp_path: Path) -> None:
    """GIVEN a pipeline without SQL stages, and one with WHEN their messages of a change are asked
    for THEN the first has one, and for the second the command is named."""
    _, visitor, _ = traced(tmp_path)
    answer = visitor.get(f"/api/v1/messages/{CHANGE}?encode=shop")
    assert answer.status_code == 200, answer.text
    found = answer.json()["encoded"]["message"]
    assert found["id"] == "1200-t1-insert-0"
    assert "t1" in found["destination"]
    assert found["bytes"] > 10
    page = visitor.page(f"/console/messages/{CHANGE}?encode=shop")
    check_markup(page)
    assert "Message of shop" in page.text
    spark = visitor.get(f"/api/v1/messages/{CHANGE}?encode=large").json()["encoded"]
    assert spark["message"] is None
    assert "tailrace pipeline try large" in spark["why"]
    unread = visitor.get(f"/api/v1/messages/{CHANGE}?encode=others").json()["encoded"]
    assert unread["message"] is None
    assert visitor.get(f"/api/v1/messages/{CHANGE}?encode=none").status_code == 404


def test_a_pipeline_is_tried(tmp_path: Path) -> None:
    """GIVEN a log WHEN a pipeline is tried THEN the page and the API have the messages of the last
    changes that it reads, the newest first, and nothing is sent; one that needs Spark, and one that
    reads none of them, say so."""
    house, visitor, positions = traced(tmp_path)
    newest = [each.event_id for each in reversed(positions)]
    found = visitor.get("/api/v1/pipelines/shop/try").json()
    assert [each["change"] for each in found["messages"]] == newest[:5]
    single = visitor.get(f"/api/v1/messages/{newest[0]}?encode=shop").json()["encoded"]["message"]
    assert found["messages"][0] == {"change": newest[0], **single}
    for query, count in (("limit=2", 2), ("limit=20", 12), ("table=t1&limit=3", 3), ("table=x", 0)):
        answer = visitor.get(f"/api/v1/pipelines/shop/try?{query}").json()
        assert len(answer["messages"]) == count, query
    page = visitor.page("/console/pipelines/shop/try?limit=1")
    check_markup(page)
    assert newest[0] in page.text
    assert found["messages"][0]["destination"] in page.text
    spark = visitor.page("/console/pipelines/large/try")
    assert "This pipeline needs Spark: tailrace pipeline try large" in spark.text
    nothing = visitor.page("/console/pipelines/others/try")
    assert "No change that this pipeline reads is among the last 12 of the log." in nothing.text
    assert not house.audit()


def test_what_cannot_be_tried(tmp_path: Path) -> None:
    _, visitor, _ = traced(tmp_path)
    for query in ("limit=21", "limit=x", "table=" + "a" * 201):
        assert visitor.get(f"/api/v1/pipelines/shop/try?{query}").status_code in (400, 409)
    assert visitor.get("/api/v1/pipelines/none/try").status_code == 404
    anyone = Visitor(visitor.house)
    assert anyone.get("/api/v1/pipelines/shop/try").status_code == 401
    empty = operator_of(House(tmp_path / "none", log={"path": str(tmp_path / "no")}))
    assert empty.get("/api/v1/pipelines/shop/try").json()["messages"] == []


@pytest.mark.parametrize("text", [XSS, "é" * 300, "\x00\x1b[2J"])
def test_values_are_text_and_are_shortened(tmp_path: Path, text: str) -> None:
    """GIVEN values, contents and prefixes of any text WHEN they are shown THEN nothing is markup,
    and long ones are cut."""
    written = TestLog(LocalStore(tmp_path / "own", create=True), log_id="a1")  # type: ignore[arg-type]
    table = relation(1)
    written.append(
        transaction(1, insert(table, 1, text), update(table, 1), message(9, text.encode()))
    )
    written.close()
    house = House(tmp_path / "data", log={"path": str(tmp_path / "own")})
    house.healthy()
    visitor = operator_of(house)
    page = visitor.page("/console/messages")
    check_markup(page)
    assert not [each for each in page.all("img") if each.get("src") == "x"]
    found = visitor.get("/api/v1/messages").json()["messages"]
    assert {each["op"] for each in found} == {"insert", "update", "message"}
    inserted = next(each for each in found if each["op"] == "insert")
    assert max(len(value) for value in inserted["after"].values()) <= 200
    assert bool(inserted["cut"]) == (len(text) > 200)
    for each in found:
        check_markup(visitor.page(f"/console/messages/{each['id']}"))
