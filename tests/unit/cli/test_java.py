"""Which Java Spark will find, and what is said when it will not do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.cli.java import require_java
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def java(folder: Path, says: str) -> Path:
    """A program that says what `java -version` would."""
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return program.parent


def refusal(environment: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        require_java(environment)
    assert "17 or newer" in caught.value.hint
    assert "JAVA_HOME" in caught.value.hint
    return str(caught.value)


def test_the_one_of_this_machine_will_do() -> None:
    assert require_java() >= 17


def test_none() -> None:
    assert "there is none" in refusal({"PATH": ""})


def test_one_on_the_path(tmp_path: Path) -> None:
    assert require_java({"PATH": str(java(tmp_path, 'openjdk version "21" 2023-09-19'))}) == 21


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    path = str(java(tmp_path, 'openjdk version "21" 2023-09-19'))
    assert require_java({"PATH": "", "JAVA_HOME": str(tmp_path)}) == 21
    wrong = refusal({"PATH": path, "JAVA_HOME": str(tmp_path / "nowhere")})
    assert "does not start" in wrong


def test_an_old_one(tmp_path: Path) -> None:
    path = str(java(tmp_path, 'java version "1.8.0_202"'))
    assert "is Java 8, too old" in refusal({"PATH": path})


def test_something_else(tmp_path: Path) -> None:
    path = str(java(tmp_path, "Unable to locate a Java Runtime."))
    assert "does not say" in refusal({"PATH": path})
