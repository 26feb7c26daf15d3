from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import structlog

from tailrace.observe import logs

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of three events: debug, info and error."""
    events = structlog.get_logger()
    events.debug("test.debug")
    events.info("test.info", count=1)
    events.error("test.error")
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


@pytest.mark.parametrize("format_", ["auto", "json"])
def test_lines_are_json_off_a_terminal(
    capsys: pytest.CaptureFixture[str], format_: logs.Format
) -> None:
    logs.configure(format_)
    first, second = map(json.loads, lines(capsys))
    assert (first["event"], first["level"], first["count"]) == ("test.info", "info", 1)
    assert first["timestamp"].endswith("Z")
    assert second["event"] == "test.error"


@pytest.mark.parametrize(
    ("verbose", "level", "count"),
    [(False, "", 2), (True, "", 3), (False, "error", 1), (False, "debug", 3), (False, "x", 2)],
)
def test_the_level(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    verbose: bool,
    level: str,
    count: int,
) -> None:
    monkeypatch.setenv("TAILRACE_LOG_LEVEL", level)
    logs.configure("json", verbose=verbose)
    assert len(lines(capsys)) == count


def test_console_lines_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("console")
    assert "test.info" in lines(capsys)[0]
