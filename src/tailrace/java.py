"""Finds Java as Spark does, checks its version, and names the folder for what it is given."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

MIN_VERSION = 17
_HINT = (
    f"Install a Java runtime, {MIN_VERSION} or newer (Debian: apt install openjdk-17-jre-headless, "
    "macOS: brew install openjdk@17), or point JAVA_HOME at one."
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_TIMEOUT_S = 30.0


def require_java(environment: Mapping[str, str] | None = None) -> int:
    """The major version of the Java that Spark will use; ConfigError if it is unusable."""
    java = find_java(environment)
    if java is None:
        raise ConfigError("Spark needs Java, and `java` was not found on PATH", hint=_HINT)
    try:
        answer = subprocess.run(
            [java, "-version"], check=False, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"Spark needs Java, and {java} cannot be started", hint=_HINT) from error
    version = major(answer.stderr)
    if version is None:
        raise ConfigError(f"Spark needs Java, and {java} -version printed no version", hint=_HINT)
    if version < MIN_VERSION:
        raise ConfigError(
            f"Spark needs Java {MIN_VERSION} or newer, and {java} is Java {version}", hint=_HINT
        )
    return version


def find_java(environment: Mapping[str, str] | None = None) -> str | None:
    """JAVA_HOME first, even if it is wrong: Spark does not look at PATH then."""
    variables = os.environ if environment is None else environment
    home = variables.get("JAVA_HOME")
    if home:
        return str(Path(home, "bin", "java"))
    return shutil.which("java", path=variables.get("PATH", os.defpath))


def cache_folder() -> Path:
    """Where Tailrace keeps what it can create or download again. It may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace"


def major(output: str) -> int | None:
    """The major version in the output of `java -version`.

    >>> major('openjdk version "17.0.15" 2025-04-15'), major('java version "1.8.0_202"')
    (17, 8)
    """
    match = _VERSION.search(output)
    return int(match[1]) if match else None
