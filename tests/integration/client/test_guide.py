"""The examples of the guide run in order, and print what the guide shows."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tests.waiting import LONG_S

if TYPE_CHECKING:
    from tests.integration.client.system import System

GUIDE = Path(__file__).parents[3] / "docs/guides/client.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run(system: System, program: str, change: str, expected: str, folder: Path) -> None:
    """Start an example, change the table after its first line, and compare its output."""
    program = program.replace("nats://localhost:4222", system.server.url)
    lines = expected.splitlines(keepends=True)
    with subprocess.Popen(
        [sys.executable, "-u", "-c", program],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
    ) as process:  # fmt: skip
        guard = threading.Timer(LONG_S, process.kill)
        guard.start()
        try:
            assert process.stdout is not None
            printed = [process.stdout.readline()]
            if change:
                system.database.execute(change)
            printed += [process.stdout.readline() for _ in lines[1:]]
        finally:
            guard.cancel()
            process.kill()
        assert process.stderr is not None
        assert printed == lines, process.stderr.read()


def test_examples_print_what_the_guide_shows(system: System, tmp_path: Path) -> None:
    blocks = BLOCK.findall(GUIDE.read_text())
    assert blocks[0][0] == "sql"
    system.database.execute(blocks.pop(0)[1])
    system.start()
    examples = 0
    program = change = ""
    for kind, text in blocks:
        if kind == "python":
            program, change = text, ""
        elif kind == "sql":
            change = text
        else:
            run(system, program, change, text, tmp_path)
            examples += 1
    assert examples == sum(kind == "python" for kind, _ in blocks) == 5
    # Run again: the last example has stored its state and resumes.
    change = "DELETE FROM users WHERE id = 2"
    system.database.execute("UPDATE users SET name = 'Ada Lovelace' WHERE id = 3")
    run(system, program, change, "update 3 Ada Lovelace\ndelete 2 None\n", tmp_path)
