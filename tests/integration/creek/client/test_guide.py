"""The examples of the guide run in order, and print what the guide shows."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_postgres import Database
    from tests.integration.creek.system import Producer

pytestmark = pytest.mark.long

GUIDE = Path(__file__).parents[4] / "docs/guides/creek-client.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run(program: str, expected: str, folder: Path) -> None:
    """Start an example, and compare its output."""
    lines = expected.splitlines(keepends=True)
    with subprocess.Popen(
        [sys.executable, "-u", "-c", program],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
    ) as process:  # fmt: skip
        guard = threading.Timer(LONG_S, process.kill)
        guard.start()
        try:
            assert process.stdout is not None
            printed = [process.stdout.readline() for _ in lines]
        finally:
            guard.cancel()
            process.kill()
        assert process.stderr is not None
        assert printed == lines, process.stderr.read()


def test_examples_print_what_the_guide_shows(
    database: Database, producer: Callable[..., Producer], tmp_path: Path
) -> None:
    blocks = BLOCK.findall(GUIDE.read_text())
    assert blocks[0][0] == "sql"
    database.execute(blocks.pop(0)[1])
    url = producer("public.users").nats
    examples = 0
    program = again = ""
    for kind, text in blocks:
        if kind == "python":
            program = text.replace("nats://localhost:4222", url)
            program = program.replace('"shop"', f'"{database.name}"')
            again = program if "write_text" in program else again
        elif kind == "sql":
            with database.connect() as connection:
                for statement in text.split(";\n"):
                    connection.execute(statement.encode())
        else:
            run(program, text, tmp_path)
            examples += 1
    assert examples == sum(kind == "python" for kind, _ in blocks) == 5
    # Run again: the example that stores its position resumes.
    database.execute("INSERT INTO users VALUES (9)")
    run(again, "4 c\n", tmp_path)
