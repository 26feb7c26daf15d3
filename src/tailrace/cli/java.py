"""Java, which Spark needs: found as Spark finds it, before anything is started."""

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

OLDEST = 17
_HINT = (
    f"Install a Java runtime, {OLDEST} or newer (Debian: apt install openjdk-17-jre-headless, "
    "macOS: brew install openjdk@17), or point JAVA_HOME at one."
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_PATIENCE_S = 30.0


def require_java(environment: Mapping[str, str] | None = None) -> int:
    """The major version of the Java that Spark will run on; `ConfigError` if it is none of use."""
    java = _find(os.environ if environment is None else environment)
    if java is None:
        raise ConfigError("Spark runs on Java, and there is none on this machine", hint=_HINT)
    try:
        asked = subprocess.run(
            [java, "-version"], check=False, capture_output=True, text=True, timeout=_PATIENCE_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"Spark runs on Java, and {java} does not start", hint=_HINT) from error
    version = major(asked.stderr)
    if version is None:
        raise ConfigError(f"Spark runs on Java, and {java} does not say that it is one", hint=_HINT)
    if version < OLDEST:
        raise ConfigError(f"{java} is Java {version}, too old for Spark", hint=_HINT)
    return version


def _find(environment: Mapping[str, str]) -> str | None:
    """JAVA_HOME first, whether it is right or not: Spark looks nowhere else then."""
    home = environment.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java", path=_path(environment))


def _path(environment: Mapping[str, str]) -> str:
    return environment.get("PATH", os.defpath)


def major(said: str) -> int | None:
    """The version in what `java -version` says.

    >>> major('openjdk version "17.0.15" 2025-04-15'), major('java version "1.8.0_202"')
    (17, 8)
    """
    found = _VERSION.search(said)
    return int(found[1]) if found else None
