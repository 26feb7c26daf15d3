"""The content of a settings file that a process inherits."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tailrace import process
from tailrace.config.pinned import Pin, pinned

if TYPE_CHECKING:
    from pathlib import Path

SHOW = """
import sys
from pathlib import Path
from tailrace import config
file, on_disk, out = sys.argv[1:]
found = config.load(Path(file), on_disk=on_disk == "disk").source.slot
Path(out).write_text(found)
"""


def slot(file: Path, pin: Pin, where: str = "") -> str:
    out = file.parent / "out"
    command = [sys.executable, "-c", SHOW, str(file), where, str(out)]
    assert process.start(command, share=pin.share, variables=pin.variables).wait(60) == 0
    return out.read_text()


def test_a_child_reads_what_was_loaded(tmp_path: Path) -> None:
    """GIVEN a file that has changed since it was loaded THEN a child reads the content of then,
    unless it asks for the file, or for another one."""
    file, other = tmp_path / "tailrace.yml", tmp_path / "other.yml"
    pin = Pin(file, b"source: {slot: loaded}\n")
    file.write_text("source: {slot: edited}\n")
    other.write_text("source: {slot: other}\n")
    assert slot(file, pin) == "loaded"
    assert slot(file, pin) == "loaded"
    assert slot(file, pin, "disk") == "edited"
    assert slot(other, pin) == "other"
    pin.close()
    assert slot(file, pin) == "edited"


def test_a_descendant_that_has_not_inherited_it_reads_the_file(tmp_path: Path) -> None:
    """GIVEN the variable without the memory, or with another file under its number THEN it is not
    used."""
    file = tmp_path / "tailrace.yml"
    file.write_text("source: {slot: edited}\n")
    pin = Pin(file, b"source: {slot: loaded}\n")
    [fd] = pin.share
    with (tmp_path / "something").open("w") as something:
        variables = {"TAILRACE_PINNED_SETTINGS": f"{something.fileno()}:{file}"}
        out = tmp_path / "out"
        command = [sys.executable, "-c", SHOW, str(file), "", str(out)]
        child = process.start(command, share=(something.fileno(),), variables=variables)
        assert child.wait(60) == 0
    assert out.read_text() == "edited"
    subprocess.run(command, check=True, env={"TAILRACE_PINNED_SETTINGS": f"{fd}:{file}"})
    assert out.read_text() == "edited"
    assert pinned(file) is None
    pin.close()
