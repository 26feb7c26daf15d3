"""`tailrace mirror` on the command line: what is wrong, and the way out."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

import nats
import orjson
import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.testing import EmbeddedNats
    from tests.fix_postgres import Database

SECRET = "hunter2secret"


def run(*arguments: str, folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tailrace.cli", "mirror", *arguments],
        capture_output=True, text=True, timeout=60, cwd=folder, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert SECRET not in said
    return done.returncode, " ".join(said.split())


async def prepared(url: str, *, answer: bytes | None = None) -> None:
    """A stream of changes and a schema document; and somebody who answers one request."""
    connection = await nats.connect(url)
    jetstream = connection.jetstream()
    await jetstream.add_stream(name="CDC", subjects=["cdc.>"])
    bucket = await jetstream.create_key_value(bucket="schemas")
    await bucket.put("users", orjson.dumps({"timestamp": 0, "columns": [], "key": []}))
    await connection.close()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--to", "mysql://u:hunter2secret@h/d"], 2, "sqlite:///local.db"),
        (["--to", "sqlite://local.db"], 2, "Three slashes"),
        (["--to", "sqlite:///x.db", "--key", "a", "--no-key"], 2, "contradict"),
        (["--to", "sqlite:///x.db", "-t", "b", "--as", "c"], 2, "for one table"),
        (["--to", "sqlite:///x.db", "-t", "a.b.c"], 2, "not the name of a table"),
        (
            ["--to", "sqlite:///x.db", "--from", "nats://u:hunter2secret@127.0.0.1:1"],
            30,
            "Check the address",
        ),
    ],
)
def test_what_is_wrong_before_anything_is_asked(
    arguments: list[str], code: int, words: str, tmp_path: Path
) -> None:
    found, said = run("--table", "users", *arguments, folder=tmp_path)
    assert (found, words in said) == (code, True), said


def test_what_the_servers_refuse(server: EmbeddedNats, database: Database, tmp_path: Path) -> None:
    asyncio.run(prepared(server.url))
    to = ["--from", server.url, "--table", "users", "--to"]
    code, said = run(*to, "sqlite:///x.db", folder=tmp_path)
    assert (code, "`snapshots` in its settings" in said) == (30, True), said
    code, said = run(*to, "sqlite:///nowhere/x.db", folder=tmp_path)
    assert (code, "Check the folder" in said) == (2, True), said
    code, said = run(*to, f"postgresql://u:{SECRET}@127.0.0.1:1/db", folder=tmp_path)
    assert code == 20, said
    port = database.server.port
    url = f"postgresql://postgres:{SECRET}@127.0.0.1:{port}/nowhere"
    code, said = run(*to, url, folder=tmp_path)
    assert (code, "Correct dbname in --to" in said) == (22, True), said
