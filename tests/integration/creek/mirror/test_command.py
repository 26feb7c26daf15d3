"""`tailrace mirror` of Creek's tables, as a process."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.integration.creek.client.producer import USERS, Producer
from tests.integration.creek.mirror.following import Source
from tests.integration.mirror.reading import places
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database
    from tests.integration.mirror.reading import Place

SELECT = "SELECT id, name FROM users ORDER BY id"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tailrace.cli", "mirror", "--table", "users", *arguments]


@contextlib.contextmanager
def running(*arguments: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A mirror that is killed in the end."""
    with subprocess.Popen(command(*arguments), cwd=folder, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_killed_again_and_again(
    feeding: Producer, copy: Database, tmp_path: Path, kind: str
) -> None:
    """GIVEN a table that changes WHEN its mirror is killed at random THEN in the end it is what the
    source is, after a single snapshot."""
    [place] = [each for each in places(tmp_path, copy) if each.kind == kind]
    chance = random.Random(11)
    source = Source(USERS, chance)
    feeding.wal(USERS, *(each for _ in range(20) for each in source.transaction()))
    feeding.publish_schema(USERS)
    feeding.snapshot(USERS, source.listed(), **source.seen())
    to = ["--from", f"{feeding.url}?creek=CREEK", "--to", place.url]
    with running(*to, folder=tmp_path):
        wait_for(lambda: state(place), "the first rows")
    for _ in range(5):
        before = state(place)
        with running(*to, folder=tmp_path):
            feeding.wal(USERS, *source.transaction())
            wait_for(partial(moved, place, before), "it goes on")
            for _ in range(chance.randint(0, 100)):
                feeding.wal(USERS, *source.transaction())
    rows = [(row["id"], row["name"]) for row in source.listed()]
    with running(*to, folder=tmp_path) as process:
        wait_for(lambda: place.rows(SELECT) == rows, "the copy is the source")
        process.terminate()
        assert process.wait(30) == 0
    assert len(feeding.requests) == 1


def state(place: Place) -> str | None:
    """Where the mirror is; None before it is anywhere."""
    with contextlib.suppress(psycopg.Error, sqlite3.Error):
        found = place.rows("SELECT state FROM _tailrace_mirrors")
        return str(found[0][0]) if found else None
    return None


def moved(place: Place, before: str | None) -> bool:
    """Whether it is somewhere else by now."""
    return state(place) != before


def said(*arguments: str, folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        command("--to", "sqlite:///x.db", "--from", *arguments),
        capture_output=True, text=True, timeout=60, cwd=folder, check=False,
    )  # fmt: skip
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_what_is_wrong(feeding: Producer, tmp_path: Path) -> None:
    for query, code, words in (
        ("?creek=", 2, "creek=CREEK&database=shop"),
        ("?creek=CREEK", 2, "There are none so far"),
        ("?creek=OTHER&database=shop", 32, "there is no stream 'OTHER_wal'"),
    ):
        found, text = said(f"{feeding.url}{query}", folder=tmp_path)
        assert (found, words in text) == (code, True), text
    found, text = said(f"{feeding.url}?creek=CREEK", "--stream", "X", folder=tmp_path)
    assert (found, "for pipelines of shape bridge" in text) == (2, True), text
    feeding.refusal = "404", {"error": "no such table", "code": "BAD_CONFIG", "hint": "There is x."}
    found, text = said(f"{feeding.url}?creek=CREEK&database=shop", folder=tmp_path)
    assert (found, "There is x." in text) == (2, True), text
