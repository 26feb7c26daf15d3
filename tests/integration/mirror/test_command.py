"""`tailrace mirror` on the command line: errors and hints."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import nats
import orjson
import pytest

from tests import command

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.testing import EmbeddedNats
    from tests.fix_postgres import Database

SECRET = "hunter2secret"


def run(*arguments: str, folder: Path) -> tuple[int, str]:
    done = command.run("mirror", *arguments, folder=folder)
    output = done.stdout + done.stderr
    assert SECRET not in output
    return done.returncode, " ".join(output.split())


async def prepare(url: str) -> None:
    """Create a stream of changes and a schema document."""
    connection = await nats.connect(url)
    jetstream = connection.jetstream(timeout=60)
    await jetstream.add_stream(name="CDC", subjects=["cdc.>"])
    bucket = await jetstream.create_key_value(bucket="schemas")
    await bucket.put("users", orjson.dumps({"timestamp": 0, "columns": [], "key": []}))
    await connection.close()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
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
def test_invalid_options_and_addresses(
    arguments: list[str], code: int, text: str, tmp_path: Path
) -> None:
    exit_code, output = run("--table", "users", *arguments, folder=tmp_path)
    assert (exit_code, text in output) == (code, True), output


@pytest.mark.long
def test_errors_of_the_servers(server: EmbeddedNats, database: Database, tmp_path: Path) -> None:
    asyncio.run(prepare(server.url))
    to = ["--from", server.url, "--table", "users", "--to"]
    code, output = run(*to, "sqlite:///x.db", folder=tmp_path)
    assert (code, "`snapshots` in its settings" in output) == (30, True), output
    code, output = run(*to, "sqlite:///nowhere/x.db", folder=tmp_path)
    assert (code, "Check the folder" in output) == (2, True), output
    code, output = run(*to, f"postgresql://u:{SECRET}@127.0.0.1:1/db", folder=tmp_path)
    assert code == 20, output
    port = database.server.port
    url = f"postgresql://postgres:{SECRET}@127.0.0.1:{port}/nowhere"
    code, output = run(*to, url, folder=tmp_path)
    assert (code, "Correct dbname in --to" in output) == (22, True), output
