"""The page Health: checks, alerts and events, and what is on the overview of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tailrace.observe.figures import CaptureFigures
from tailrace.observe.health import AlertFigures, ChannelFigures, CheckFigures, WatchFigures
from tailrace.run import status
from tailrace.watch import store
from tailrace.watch.result import Key
from tests.unit.console.house import NOW, RUNNING, House, Visitor
from tests.unit.console.test_pages import XSS, check_markup

if TYPE_CHECKING:
    from pathlib import Path

ALERTS = {"channels": {"own": {"command": {"argv": ["/bin/true"]}}}}


def watched(data: Path, *checks: CheckFigures, text: str = "the answer is late") -> House:
    """A healthy system with a watchdog that reports these checks, and 5 events of `heartbeat`."""
    house = House(data, alerts=ALERTS)
    house.healthy()
    alert = AlertFigures(id="a1", check="heartbeat", severity="error", summary=text, since=NOW)
    channel = ChannelFigures(name="own", pending=2, error=text)
    report = WatchFigures(state="watching", checks=checks, alerts=(alert,), channels=(channel,))
    status.write(house.where, "watch", report)
    with store.Database(store.path_of(data), write=True) as file, file.transaction() as connection:
        for number in range(5):
            connection.execute(
                *store.change(
                    (NOW + timedelta(minutes=number)).timestamp(),
                    Key("heartbeat" if number else "lag", "shop"),
                    state="error",
                    before="healthy",
                    summary=f"{text} {number}",
                )
            )
    return house


BAD = CheckFigures(
    check="heartbeat", subject="shop", state="error", summary="missing: 90 s", hint="Look at it.",
    since=NOW,
)  # fmt: skip
GOOD = CheckFigures(check="source", state="healthy", summary="PostgreSQL answers", since=NOW)


def test_checks_alerts_and_events(tmp_path: Path) -> None:
    """GIVEN a watchdog with a check that fails WHEN the page is loaded THEN it has the check first,
    with since when and why, the alert, and the events with their times."""
    visitor = Visitor(watched(tmp_path / "data", GOOD, BAD))
    page = visitor.page("/console/health")
    check_markup(page)
    for part in (
        "1 of 2 checks finds a problem",
        "missing: 90 s",
        "Look at it.",
        "2026-01-31 12:00:00",
        "2026-01-31 12:04:00",
        "1 alert is firing",
        "Alerts do not reach the channel own",
    ):
        assert part in page.text, part
    found = visitor.get("/api/v1/health").json()
    assert [each["check"] for each in found["checks"]] == ["heartbeat", "source"]
    assert [each["summary"][-1] for each in found["history"]] == ["4", "3", "2", "1", "0"]
    assert found["state"] == "error"


def test_events_of_one_check(tmp_path: Path) -> None:
    visitor = Visitor(watched(tmp_path / "data", BAD))
    found = visitor.get("/api/v1/health?check=lag&subject=shop").json()
    assert [each["summary"][-1] for each in found["history"]] == ["0"]
    assert len(visitor.get("/api/v1/health?limit=2").json()["history"]) == 2
    assert visitor.get("/api/v1/health?limit=1e9").status_code == 400
    assert "Show 1,000" in visitor.page("/console/health?limit=2").text


def test_the_overview_names_what_only_the_watchdog_sees(tmp_path: Path) -> None:
    """GIVEN failing checks WHEN the overview is loaded THEN it names those for which the figures
    have no problem of their own, and channels that do not work."""
    known = CheckFigures(check="pipeline", subject="shop", state="error", summary="failed twice")
    visitor = Visitor(watched(tmp_path / "data", BAD, known, GOOD))
    text = visitor.page("/").text
    assert "Check heartbeat shop" in text
    assert "missing: 90 s" in text
    assert "Alerts do not reach the channel own" in text
    assert "failed twice" not in text
    found = visitor.get("/api/v1/overview").json()
    assert found["state"] == "error"
    assert visitor.get("/ready").status_code == 200


def test_a_watchdog_that_does_not_run(tmp_path: Path) -> None:
    house = House(tmp_path / "data", alerts=ALERTS | {"supervised": False})
    house.healthy()
    visitor = Visitor(house)
    assert "The watchdog does not run" in visitor.page("/console/health").text
    assert "tailrace watch" in visitor.page("/console/health").text
    assert "The watchdog does not run: no alerts are sent" in visitor.page("/").text


def test_without_a_section_alerts_the_page_says_how_to_add_it(house: House) -> None:
    house.healthy()
    page = Visitor(house).page("/console/health")
    assert "No watchdog" in page.text
    assert "tailrace alert test" in page.text
    assert "watchdog" not in Visitor(house).page("/").text.replace("Health", "")


def test_texts_of_checks_are_never_markup(tmp_path: Path) -> None:
    check = CheckFigures(check=XSS, subject=XSS, state="error", summary=XSS, hint=XSS)
    visitor = Visitor(watched(tmp_path / "data", check, text=XSS))
    for address in ("/", "/console/health"):
        page = visitor.page(address)
        check_markup(page)
        assert page.text.count(XSS) >= 3
        assert not [each for each in page.all("img") if each.get("src") == "x"]


def late(data: Path, state: str, **keys: Any) -> Visitor:
    """A system whose pipeline has the first change, with a last commit 4,000 s ago."""
    house = House(data, **keys)
    house.healthy()
    last = datetime.now(UTC) - timedelta(seconds=4000)
    figures = CaptureFigures(state="streaming", changes=900, last_committed_at=last)
    status.write(house.where, "capture", figures)
    house.write(replace(RUNNING, state=state, position=str(house.folder.positions[0])))
    return Visitor(house)


def test_a_pipeline_that_is_late_is_a_problem_without_a_watchdog(tmp_path: Path) -> None:
    """GIVEN a sink that accepts more slowly than the log grows, and no alerts, WHEN the overview is
    read THEN it is no longer healthy, names the pipeline, and says that alerts are missing."""
    visitor = late(tmp_path, "running")
    document = visitor.get("/api/v1/overview").json()
    (problem,) = document["problems"]
    assert (document["state"], problem["severity"]) == ("warning", "warning")
    assert problem["text"].startswith("pipeline shop is 4,")
    page = visitor.page("/")
    assert "Everything is well" not in page.text
    assert "Alerts are not configured" in page.text
    assert "s behind the log" in visitor.page("/console/pipelines/shop").text


def test_when_a_pipeline_is_not_late(tmp_path: Path) -> None:
    """GIVEN a limit in the settings, or a pipeline that has another problem, THEN lag is none."""
    for number, (state, keys) in enumerate(
        (("running", {"alerts": {"lag_s": 9000}}), ("retrying", {}), ("paused", {}))
    ):
        visitor = late(tmp_path / str(number), state, **keys)
        problems = visitor.get("/api/v1/overview").json()["problems"]
        assert not [each for each in problems if "behind the log" in each["text"]]
        assert ("Alerts are not configured" in visitor.page("/").text) == (not keys)
