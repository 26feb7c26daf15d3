"""`tailrace mirror` of Creek's tables, as a process."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests import command
from tests.integration.creek.client.producer import USERS, Producer
from tests.integration.creek.mirror.following import RandomTable
from tests.integration.mirror.reading import places
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fix_postgres import Database
    from tests.integration.mirror.reading import Place

SELECT = "SELECT id, name FROM users ORDER BY id"


def running(*arguments: str, folder: Path) -> command.Service:
    """A mirror that is killed at the end of the block."""
    return command.Service("mirror", "--table", "users", *arguments, folder=folder).start()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_repeatedly_killed_mirror_equals_the_source(
    feeding: Producer, copy: Database, tmp_path: Path, kind: str
) -> None:
    """GIVEN a table that changes WHEN its mirror is killed at random THEN in the end it equals the
    source, after a single snapshot."""
    [place] = [place for place in places(tmp_path, copy) if place.kind == kind]
    randomness = random.Random(11)
    source = RandomTable(USERS, randomness)
    feeding.wal(USERS, *(change for _ in range(20) for change in source.transaction()))
    feeding.publish_schema(USERS)
    feeding.snapshot(USERS, source.listed(), **source.header())
    to = ["--from", f"{feeding.url}?creek=CREEK", "--to", place.url]
    with running(*to, folder=tmp_path):
        wait_for(lambda: state(place), "the first rows")
    for _ in range(5):
        before = state(place)
        with running(*to, folder=tmp_path):
            feeding.wal(USERS, *source.transaction())
            wait_for(partial(moved, place, before), "the mirror resumes")
            for _ in range(randomness.randint(0, 100)):
                feeding.wal(USERS, *source.transaction())
    rows = [(row["id"], row["name"]) for row in source.listed()]
    with running(*to, folder=tmp_path) as process:
        wait_for(lambda: place.rows(SELECT) == rows, "the copy equals the source")
        assert process.stop(LONG_S) == 0
    assert len(feeding.requests) == 1


def state(place: Place) -> str | None:
    """The stored state of the mirror; None before the first."""
    with contextlib.suppress(psycopg.Error, sqlite3.Error):
        states = place.rows("SELECT state FROM _tailrace_mirrors")
        return str(states[0][0]) if states else None
    return None


def moved(place: Place, before: str | None) -> bool:
    """Whether the stored state has changed."""
    return state(place) != before


def run(*arguments: str, folder: Path) -> tuple[int, str]:
    mirror = ("mirror", "--table", "users", "--to", "sqlite:///x.db", "--from")
    done = command.run(*mirror, *arguments, folder=folder)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_errors_and_hints(feeding: Producer, tmp_path: Path) -> None:
    for query, code, expected in (
        ("?creek=", 2, "creek=CREEK&database=shop"),
        ("?creek=CREEK", 2, "none so far"),
        ("?creek=OTHER&database=shop", 32, "there is no stream 'OTHER_wal'"),
    ):
        exit_code, text = run(f"{feeding.url}{query}", folder=tmp_path)
        assert (exit_code, expected in text) == (code, True), text
    exit_code, text = run(f"{feeding.url}?creek=CREEK", "--stream", "X", folder=tmp_path)
    assert (exit_code, "for pipelines of shape bridge" in text) == (2, True), text
    feeding.refusal = "404", {"error": "no such table", "code": "BAD_CONFIG", "hint": "There is x."}
    exit_code, text = run(f"{feeding.url}?creek=CREEK&database=shop", folder=tmp_path)
    assert (exit_code, "There is x." in text) == (2, True), text
