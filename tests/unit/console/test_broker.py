"""The page of the broker: what it shows of the tables, and what it says without them."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.console.views import broker as views
from tests.unit.console.brokered import figures, group, show, topic
from tests.unit.console.house import TOKEN, House, Visitor
from tests.unit.console.test_pages import XSS, check_markup

if TYPE_CHECKING:
    from pathlib import Path

PAGE, API = "/console/broker", "/api/v1/broker"
BEARER = {"authorization": f"Bearer {TOKEN}"}


def document(visitor: Visitor, query: str = "") -> dict[str, Any]:
    answer = visitor.get(f"{API}{query}", **BEARER)
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def names(entries: list[dict[str, Any]]) -> list[str]:
    return [each["name"] for each in entries]


def test_topics_and_groups(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN topics and groups WHEN the page is loaded THEN it has each with its lag, every number
    has a name that the page explains, and only a group without members has the button."""
    show(monkeypatch, figures())
    page = operator.page(PAGE)
    check_markup(page)
    for metric in {each["data-metric"] for each in page.all("data")}:
        assert metric.startswith(f"{API}: ")
        assert f"<code>{metric}</code>" in page.source
    lags = [e["value"] for e in page.all("data") if e["data-metric"] == f"{API}: lag"]
    assert lags == ["70", "60", "10", "0", "0"]
    buttons = [e["href"] for e in page.all("a") if e.get("href", "").startswith(f"{PAGE}/reset")]
    assert buttons == [f"{PAGE}/reset?group=billing"]
    form = operator.page(buttons[0])
    assert "This is not possible" not in form.text
    assert form.value("group") == "billing"
    assert [e["href"] for e in form.all("a") if e.get("class") == "button"] == [PAGE]
    found = document(operator)
    assert found["problem"] is None
    assert found["serving"]["address"] == "127.0.0.1"


def test_a_topic_or_a_group_alone(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    show(monkeypatch, figures())
    found = document(operator, "?topic=events")
    assert (names(found["topics"]), names(found["groups"])) == (["events"], ["billing live"])
    found = document(operator, "?group=billing")
    assert (names(found["groups"]), len(found["topics"])) == (["billing"], 2)
    assert not document(operator, "?group=none")["groups"]
    assert "Only group billing" in operator.page(f"{PAGE}?group=billing").text


def test_a_long_list_is_cut(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN more partitions and offsets than a page holds WHEN it is loaded THEN it says how much
    is missing, and a filter reaches it."""
    monkeypatch.setattr(views, "_MOST", 3)
    topics = tuple(topic(f"t{number}", 9, 9) for number in range(5))
    groups = tuple(group(f"g{number}", "t0", 9, 9) for number in range(4))
    show(monkeypatch, replace(figures(), topics=topics, groups=groups, complete=False))
    found = document(operator)
    assert (names(found["topics"]), found["more_topics"]) == (["t0", "t1"], 3)
    assert (names(found["groups"]), found["more_groups"]) == (["g0", "g1"], 2)
    assert names(document(operator, "?topic=t4")["topics"]) == ["t4"]
    text = operator.page(PAGE).text
    assert "And 3 more topics" in text
    assert "And 2 more groups" in text
    assert "the last ones are missing here" in text


def test_shadow_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a run that copies the topics to Kafka WHEN the page is loaded THEN it has the figures
    of that pipeline alone, and which topics are copied."""
    sink = {"type": "shadow", "bootstrap": "k:9092", "dsn": "host=127.0.0.1 port=1"}
    other = {"sink": {"type": "nats", "url": "nats://127.0.0.1:1"}}
    copy = {"tables": ["kafka.messages"], "shape": "record", "sink": sink}
    house = House(tmp_path / "data", pipelines={"shop": other, "copy": copy})
    shown = figures()
    off = replace(shown.topics[1], copied=False)
    show(monkeypatch, replace(shown, topics=(shown.topics[0], off)))
    visitor = Visitor(house)
    visitor.log_in()
    assert names(document(visitor)["shadow"]) == ["copy"]
    text = visitor.page(PAGE).text
    assert "Shadow mode" in text
    assert [each["copied"] for each in document(visitor)["topics"]] == [True, False]
    without = Visitor(House(tmp_path / "other"))
    without.log_in()
    assert "Shadow mode" not in without.page(PAGE).text


def test_names_of_clients_are_never_markup(
    operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(monkeypatch, figures(XSS))
    page = operator.page(PAGE)
    check_markup(page)
    assert page.text.count(XSS) >= 3
    assert not [each for each in page.all("img") if each.get("src") == "x"]


@pytest.mark.parametrize("answers", [False, True])
def test_a_database_that_does_not_answer_is_a_sentence(tmp_path: Path, answers: bool) -> None:
    """GIVEN an address that refuses, or accepts and never answers, WHEN page and API are read THEN
    both say so with what to do, and a reset is a 502."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        if not answers:
            silent.close()
        visitor = Visitor(House(tmp_path, source={"dsn": f"host=127.0.0.1 port={port} dbname=x"}))
        visitor.log_in()
        page = visitor.page(PAGE)
        assert "The broker's tables cannot be shown" in page.text
        assert "UNREACHABLE" in page.text
        assert "There are no topics" not in page.text
        problem = document(visitor)["problem"]
        assert problem["code"] == "UNREACHABLE"
        assert problem["hint"]
        body = b'{"group": "g", "to": "latest"}'
        assert visitor.ask("POST", f"{API}/reset", content=body, **BEARER).status_code == 502


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"group": "g"}', "to"),
        (b'{"to": "latest"}', "group"),
        (b'{"group": "g", "to": "soon"}', "to"),
        (b'{"group": "g", "to": "-1"}', "to"),
        (b'{"group": "g", "to": "1e3"}', "to"),
        (b'{"group": "g", "to": "9999999999999999999"}', "to"),
        (b'{"group": "g\\u0000", "to": "latest"}', "group"),
        (b'{"group": "g", "to": "latest", "topic": "a b"}', "topic"),
        (b'{"group": "g", "to": "latest", "topic": "a:b"}', "topic"),
        (b'{"group": "g", "to": "latest", "topic": ":1"}', "topic"),
    ],
)
def test_what_is_invalid_is_refused_before_the_database(
    operator: Visitor, body: bytes, field: str
) -> None:
    answer = operator.ask("POST", f"{API}/reset", content=body, **BEARER)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"].startswith(f"{field}: ")
