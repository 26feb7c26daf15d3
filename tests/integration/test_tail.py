"""`tailrace tail` and `examples/tail.py` over a captured database, as the processes users run."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fix_capture import Captured
    from tests.fix_postgres import Database

EXAMPLES = Path(__file__).parents[2] / "examples"
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return command.run("tail", *arguments, env=UNBUFFERED)


def lines(*arguments: object) -> list[dict[str, Any]]:
    done = run("--json", *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


@contextlib.contextmanager
def following(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command.command("tail", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | UNBUFFERED,
        # A test run in the background of a shell inherits an ignored SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    try:
        with process:
            yield process
    finally:
        process.kill()


def next_change(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


@pytest.fixture
def shop(database: Database, capture: Callable[..., Captured]) -> Captured:
    database.execute(
        "CREATE SCHEMA sales; CREATE TABLE users (id int PRIMARY KEY, name text);"
        "CREATE TABLE sales.orders (id int PRIMARY KEY, total numeric(9,2));"
        "ALTER TABLE sales.orders REPLICA IDENTITY FULL"
    )
    return capture(database)


@pytest.fixture
def filled(shop: Captured) -> Captured:
    shop.database.execute("INSERT INTO users VALUES (1, 'Zoë'), (2, NULL)")
    shop.database.execute("INSERT INTO sales.orders VALUES (1, 9.5)")
    shop.database.execute("UPDATE sales.orders SET total = 12")
    shop.database.execute("DELETE FROM users WHERE id = 2")
    shop.database.execute("TRUNCATE users")
    shop.catch_up()
    return shop


def test_json_lines_are_the_log(filled: Captured) -> None:
    found = lines("--log", filled.folder, "--from=earliest", "--no-follow")
    expected = filled.changes()
    assert [line["id"] for line in found] == [change.position.event_id for change in expected]
    assert [line["op"] for line in found] == [
        *("insert", "insert", "insert", "update", "delete", "truncate", "message")
    ]
    assert found[0]["after"] == {"id": "1", "name": "Zoë"}
    assert found[1]["after"]["name"] is None
    assert (found[3]["before"]["total"], found[3]["after"]["total"]) == ("9.50", "12.00")
    assert found[4]["before"] == {"id": "2"}


def test_tables_and_limit(filled: Captured) -> None:
    rest = ("--log", filled.folder, "--from=earliest")
    orders = lines(*rest, "--no-follow", "--table=orders")
    assert {line["table"] for line in orders} == {"orders"}
    assert len(orders) == 2
    both = lines(*rest, "--no-follow", "--table=sales.*", "--table=public.u*")
    assert len(both) == 6
    assert lines(*rest, "--no-follow", "--table=nothing") == []
    # A limit ends a follower as well.
    assert lines(*rest, "--limit=1", "--table=orders") == orders[:1]


def test_places_to_begin(filled: Captured) -> None:
    everything = lines("--log", filled.folder, "--from=earliest", "--no-follow")
    update = everything[3]
    for place in (update["lsn"], update["committed_at"]):
        assert lines("--log", filled.folder, f"--from={place}", "--no-follow") == everything[3:]
    assert lines("--log", filled.folder, "--no-follow") == []
    older = run("--log", filled.folder, "--from=0/1", "--no-follow")
    assert older.returncode == 16
    assert "POSITION_LOST" in older.stderr


def test_text_is_readable_and_harmless(filled: Captured) -> None:
    filled.database.execute("INSERT INTO users VALUES (3, %s)", "\x1b[2J[red]gone[/red]")
    filled.catch_up()
    done = run("--log", filled.folder, "--from=earliest", "--no-follow")
    assert done.returncode == 0, done.stderr
    assert "INSERT   public.users  id: 1  name: Zoë\n" in done.stdout
    assert "UPDATE   sales.orders  id: 1  total: 9.50 → 12.00\n" in done.stdout
    assert "TRUNCATE public.users\n" in done.stdout
    assert r"name: \x1b[2J[red]gone[/red]" in done.stdout
    assert "\x1b" not in done.stdout
    headers = [line for line in done.stdout.splitlines() if line.startswith("── ")]
    assert len(headers) == len({change.xid for change in filled.changes()})


def test_a_log_that_is_not_there_yet_is_waited_for(shop: Captured) -> None:
    with following("--json", "--log", shop.folder) as process:
        assert process.stderr is not None
        assert "waiting for `tailrace capture`" in process.stderr.readline()
        shop.database.execute("INSERT INTO users VALUES (1, 'first')")
        shop.catch_up()
        assert next_change(process)["after"] == {"id": "1", "name": "first"}
        assert next_change(process)["prefix"] == "test.flush"
        shop.database.execute("DELETE FROM users")
        shop.catch_up()
        assert next_change(process)["op"] == "delete"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
        assert process.stderr.read() == ""


def test_latest_shows_only_what_comes(filled: Captured) -> None:
    with following("--json", "--table=users", "--log", filled.folder) as process:
        assert process.stdout is not None
        number = 100
        while not select.select([process.stdout], [], [], 0)[0]:
            # There is no sign that the follower has started: commit until it prints something.
            filled.database.execute("INSERT INTO users VALUES (%s, 'late')", number)
            filled.catch_up()
            number += 1
        assert next_change(process)["after"]["name"] == "late"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0


def test_a_closed_pipe_is_not_an_error(filled: Captured) -> None:
    for extra in ([], ["--json"], ["--no-follow"]):
        with following("--log", filled.folder, "--from=earliest", *extra) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline()
            process.stdout.close()
            assert process.wait() == 0
            assert process.stderr.read() == ""


def test_bad_input(tmp_path: Path) -> None:
    missing = run("--no-follow", "--log", tmp_path)
    assert missing.returncode == 2
    assert f"BAD_CONFIG: there is no log in {tmp_path}" in missing.stderr
    wrong = run("--from=whenever", "--log", tmp_path)
    assert wrong.returncode == 2
    assert "Write earliest, latest, an LSN" in wrong.stderr
    (tmp_path / "file").write_text("")
    no_folder = run("--log", tmp_path / "file")
    assert no_folder.returncode == 17
    assert "Traceback" not in no_folder.stderr


def test_the_settings_file_sets_the_log_folder(filled: Captured, tmp_path: Path) -> None:
    settings = tmp_path / "own.yml"
    settings.write_text(f"log:\n  path: {filled.folder}\n")
    assert len(lines("-c", settings, "--from=earliest", "--no-follow")) == 7


def test_the_example_prints_every_change(filled: Captured) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "tail.py"), str(filled.folder)],
        check=True,
        capture_output=True,
        text=True,
    )
    expected = filled.changes()
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        change.position.event_id for change in expected
    ]
    assert "insert public.users None (b'1', b'Zo\\xc3\\xab')" in done.stdout


def test_the_guides_snippets_run(filled: Captured, capsys: pytest.CaptureFixture[str]) -> None:
    guide = (EXAMPLES.parent / "docs" / "guides" / "read-the-log.md").read_text("utf-8")
    names: dict[str, Any] = {}
    for part in guide.split("```python\n")[1:]:
        exec(part.split("```")[0].replace("tailrace-data/log", str(filled.folder)), names)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "insert public.users {'id': '1', 'name': 'Zoë'}"
    assert len(shown) == 4
    endless = names["follow"](filled.log, filled.log.earliest())
    assert [next(endless) for _ in range(7)] == filled.changes()
