"""Which Java Spark will find, and the errors for one that it cannot use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import ConfigError
from tailrace.java import require_java

if TYPE_CHECKING:
    from pathlib import Path


def java(folder: Path, output: str) -> Path:
    """A program that prints this for `java -version`."""
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{output}' >&2\n")
    program.chmod(0o755)
    return program.parent


def refusal(environment: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        require_java(environment)
    assert "17 or newer" in caught.value.hint
    assert "JAVA_HOME" in caught.value.hint
    return str(caught.value)


def test_the_java_of_this_machine() -> None:
    assert require_java() >= 17


def test_no_java() -> None:
    assert "was not found on PATH" in refusal({"PATH": ""})


def test_java_on_the_path(tmp_path: Path) -> None:
    assert require_java({"PATH": str(java(tmp_path, 'openjdk version "21" 2023-09-19'))}) == 21


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    path = str(java(tmp_path, 'openjdk version "21" 2023-09-19'))
    assert require_java({"PATH": "", "JAVA_HOME": str(tmp_path)}) == 21
    wrong = refusal({"PATH": path, "JAVA_HOME": str(tmp_path / "nowhere")})
    assert "cannot be started" in wrong


def test_a_version_that_is_too_old(tmp_path: Path) -> None:
    path = str(java(tmp_path, 'java version "1.8.0_202"'))
    assert "is Java 8" in refusal({"PATH": path})


def test_a_program_that_is_not_java(tmp_path: Path) -> None:
    path = str(java(tmp_path, "Unable to locate a Java Runtime."))
    assert "printed no version" in refusal({"PATH": path})
