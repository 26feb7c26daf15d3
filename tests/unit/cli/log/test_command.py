"""`tailrace log`: what it lists, prints, finds and deletes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tailrace.cli import app
from tailrace.errors import ConfigError, TailraceError
from tailrace.log import retention
from tailrace.log.store import LocalStore
from tailrace.position import Position
from tests.fix_log import TestLog, all_changes, insert, relation, transaction

if TYPE_CHECKING:
    from pathlib import Path

SEGMENTS = 7


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log on disk: an empty segment, then six of one transaction each."""
    made = TestLog(segment_bytes=1)
    made.append_all(transaction(number) for number in range(5))
    made.append(transaction(5, insert(relation(2), 50, "\x1b[2Jx")))
    made.close()
    for name, data in made.store.files().items():
        (tmp_path / name).write_bytes(data)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TAILRACE_LOG", str(tmp_path))
    return tmp_path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["log", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def run_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def fails(*arguments: str) -> TailraceError:
    result = CliRunner().invoke(app, ["log", *arguments])
    assert isinstance(result.exception, TailraceError)
    return result.exception


def test_ls_lists_segments_end_and_pins(folder: Path) -> None:
    retention.pin(LocalStore(folder), "pipeline", Position(transaction(2).lsn, 1), now=0)
    shown = run("ls")
    assert shown.count(".seg") == SEGMENTS
    assert "end: 0/1600.0" in shown
    assert "pin pipeline: 0/1300.1" in shown
    listed = run_json("ls")
    assert len(listed["segments"]) == SEGMENTS
    assert listed["segments"][1] == {
        "file": "0000000002-0000000000001000.seg",
        "after": "0/FFF.0",
        "upto": "0/1100.1",
        "last_commit": "2025-05-08T06:13:20Z",
        "entries": 2,
        "changes": 2,
        "bytes": (folder / "0000000002-0000000000001000.seg").stat().st_size,
        "epoch": 1,
    }
    assert listed["segments"][0]["last_commit"] is None
    assert listed["end"] == {"position": "0/1600.0", "end_lsn": "0/1630", "epoch": 1}
    assert listed["pins"] == {"pipeline": "0/1300.1"}


@pytest.mark.parametrize("command", ["ls", "cat", "verify"])
def test_a_folder_without_a_log_is_refused(tmp_path: Path, command: str) -> None:
    error = fails(command, "--log", str(tmp_path / "none"))
    assert isinstance(error, ConfigError)
    assert "tailrace capture" in error.hint


def positions(*arguments: str) -> list[str]:
    lines = run("cat", "--json", *arguments).splitlines()
    return [f"{change['lsn']}.{change['ordinal']}" for change in map(json.loads, lines)]


@pytest.mark.usefixtures("folder")
def test_cat_prints_everything_one_a_line() -> None:
    assert len(positions()) == 11
    lines = [line for line in run("cat").splitlines() if line.startswith("INSERT")]
    assert len(lines) == 11


@pytest.mark.usefixtures("folder")
def test_cat_prints_a_part() -> None:
    assert positions("--from", "0/1500") == ["0/1500.0", "0/1500.1", "0/1600.0"]
    assert positions("--to", "0/1200") == ["0/1100.0", "0/1100.1", "0/1200.0", "0/1200.1"]
    assert positions("--to", "0/1200.0") == ["0/1100.0", "0/1100.1", "0/1200.0"]
    assert positions("--from", "2025-05-08T06:13:25Z") == ["0/1600.0"]
    assert positions("--from", "latest") == []
    assert positions("--limit", "3") == ["0/1100.0", "0/1100.1", "0/1200.0"]
    assert positions("--table", "t2") == ["0/1600.0"]
    assert positions("--table", "public.*", "--limit", "1") == ["0/1100.0"]


@pytest.mark.usefixtures("folder")
def test_cat_does_not_obey_the_data() -> None:
    assert "\x1b" not in run("cat")
    assert "\x1b" not in run("cat", "--json")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("arguments", [("--to", "x"), ("--to", "0/1.x"), ("--from", "x")])
def test_cat_refuses_an_invalid_start(arguments: tuple[str, str]) -> None:
    assert isinstance(fails("cat", *arguments), ConfigError)


@pytest.mark.usefixtures("folder")
def test_verify_finds_nothing_in_a_good_log() -> None:
    assert run("verify").strip() == "ok: 7 segments, 13 entries, 11 changes"
    report = run_json("verify")
    assert report["ok"]
    assert report["findings"] == []
    assert [part["changes"] for part in report["segments"]] == [0, 2, 2, 2, 2, 2, 1]


def test_verify_names_the_place_of_damage(folder: Path) -> None:
    broken = sorted(folder.glob("*.seg"))[2]
    data = bytearray(broken.read_bytes())
    data[-1] ^= 1
    broken.write_bytes(bytes(data))
    result = CliRunner().invoke(app, ["log", "verify"])
    assert result.exit_code == 14
    assert f"error: {broken.name}:" in result.output
    assert "CORRUPT: 7 segments" in result.output
    result = CliRunner().invoke(app, ["log", "verify", "--json"])
    assert result.exit_code == 14
    (finding,) = json.loads(result.output)["findings"]
    assert (finding["severity"], finding["file"]) == ("error", broken.name)


def test_verify_reports_a_missing_segment(folder: Path) -> None:
    sorted(folder.glob("*.seg"))[2].unlink()
    result = CliRunner().invoke(app, ["log", "verify"])
    assert result.exit_code == 14
    assert "segments are missing" in result.output


def test_truncating_deletes_segments_that_end_before(folder: Path) -> None:
    would = run("truncate-before", "0/1300", "--dry-run")
    assert would.count("would delete") == 3
    assert len(list(folder.glob("*.seg"))) == SEGMENTS
    assert run("truncate-before", "0/1300") == would.replace("would delete", "deleted")
    assert len(list(folder.glob("*.seg"))) == SEGMENTS - 3
    assert len(list(folder.glob("*.idx"))) == SEGMENTS - 3
    left = all_changes(LocalStore(folder))
    assert left[0].position == Position(transaction(2).lsn, 0)
    assert run("truncate-before", "0/1300").strip() == "0 segments, 0 bytes"


def test_truncating_keeps_the_last_segment(folder: Path) -> None:
    run("truncate-before", "FFFFFFFF/FFFFFFFF")
    assert len(list(folder.glob("*.seg"))) == 1
    assert [change.position.lsn for change in all_changes(LocalStore(folder))] == [
        transaction(5).lsn
    ]


def test_truncating_respects_pins_unless_forced(folder: Path) -> None:
    store = LocalStore(folder)
    retention.pin(store, "slow", Position(transaction(1).lsn, 1), now=0)
    retention.pin(store, "quick", Position(transaction(4).lsn, 1), now=0)
    error = fails("truncate-before", "0/1500")
    assert "reader slow is at 0/1200.1" in str(error)
    assert "--force" in error.hint
    assert len(list(folder.glob("*.seg"))) == SEGMENTS
    run("truncate-before", "0/1300")
    run("truncate-before", "0/1500", "--force")
    assert all_changes(store)[0].position == Position(transaction(4).lsn, 0)


@pytest.mark.usefixtures("folder")
def test_truncating_refuses_an_invalid_position() -> None:
    assert isinstance(fails("truncate-before", "yesterday"), ConfigError)


def test_pins_are_listed_and_given_up(folder: Path) -> None:
    store = LocalStore(folder)
    retention.pin(store, "gone", Position(transaction(1).lsn, 1), now=0)
    rows = {row["name"]: row for row in json.loads(run("pins", "--json"))}
    assert rows["gone"]["position"] == "0/1200.1"
    assert rows["gone"]["lag_bytes"] > 0
    assert rows["gone"]["age_s"] > 3600
    assert "0/1200.1" in run("pins")
    assert "no pin any more" in run("unpin", "gone", "--yes")
    assert "gone" not in retention.pins(store)
    assert "there is no pin 'gone'" in str(fails("unpin", "gone", "--yes"))
