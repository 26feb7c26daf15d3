"""The picture of `tailrace status`, from documents of the API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tailrace.cli.status.picture import lines
from tailrace.console.local import Local
from tailrace.console.numbers import UNKNOWN
from tests.unit.console.house import House

if TYPE_CHECKING:
    from pathlib import Path

_PIPELINE = {
    "name": "orders", "sink": "nats", "state": "running", "rate_per_s": 1234567.0, "lag_s": 93784.0,
    "lag_bytes": 1023 * 1024, "latency_ms_p50": 999.0, "latency_ms_p99": 3_599_000.0,
    "parked_messages": 123456,
}  # fmt: skip


def overview(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "state": "healthy", "version": "1.0", "uptime_s": 90_000.0, "problems": [],
        "source": {
            "slot": "s" * 63, "tables": 1000, "kept_wal_bytes": 1 << 40, "lag_bytes": 1 << 40,
            "error": None, "active": True,
        },
        "capture": {
            "state": "streaming", "changes_per_s": 123456.0, "changes": 10**12,
            "transactions": 10**12,
        },
        "log": {
            "error": "", "bytes": 1 << 40, "segments": 10_000, "end": "FFFFFFFF/FFFFFFFF.12345",
        },
        "pipelines": [_PIPELINE],
    }  # fmt: skip
    return document | changes


def drawn(document: dict[str, Any], width: int = 80) -> list[str]:
    return "\n".join(each.plain for each in lines(document, width=width)).splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_the_terminal(width: int) -> None:
    """GIVEN the largest figures, long names and long errors THEN no line is wider than that, and no
    figure is cut."""
    problem = {
        "severity": "error", "text": "pipeline x: failed", "code": "POISONED",
        "detail": "why " * 60, "hint": "do " * 60,
    }  # fmt: skip
    long = _PIPELINE | {"name": "n" * 63, "state": "backing-off"}
    shown = drawn(overview(pipelines=[_PIPELINE, long], problems=[problem] * 30), width)
    assert max(map(len, shown)) <= width
    [row] = [line for line in shown if line.startswith("orders")]
    figures = ["1,234,567/s", "1 d", "1,023 KiB", "999 ms", "59 min", "123,456"]
    assert " ".join(row.split()) == " ".join(["orders → nats running", *figures])
    assert "and 10 more: --json has all" in shown
    assert "fix: do" in "\n".join(shown)


def test_what_is_unknown_is_not_zero() -> None:
    unknown = dict.fromkeys(_PIPELINE, None) | {"name": "orders", "sink": "", "state": "down"}
    [row] = [line for line in drawn(overview(pipelines=[unknown])) if line.startswith("orders")]
    assert row.split() == ["orders", "→", "?", "down", *[UNKNOWN] * 6]


def test_text_of_others_is_escaped() -> None:
    """Names and errors cannot control the terminal."""
    evil = "\x1b[2J\x9b[bold]"
    problem = {"severity": "error", "text": evil, "code": "", "detail": evil, "hint": evil}
    document = overview(
        problems=[problem], pipelines=[_PIPELINE | {"name": evil, "sink": evil, "state": evil}]
    )
    document["source"]["slot"] = document["log"]["error"] = document["capture"]["state"] = evil
    text = "\n".join(drawn(document))
    assert not any(each in text for each in "\x1b\x9b")
    assert "[bold]" in text


def test_a_system_in_trouble_names_the_fixes(tmp_path: Path) -> None:
    house = House(tmp_path / "data")
    house.park()
    house.troubled()
    shown = "\n".join(drawn(Local(house.config).get("/overview")))
    for text in ("shop → nats failed", "POISONED", "fix: ", "tailrace parked ls shop", "GAP"):
        assert text in shown
