"""Jars of Java servers: Maven downloads them once into the user's cache."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tailrace.java import cache_folder, find_java

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tailrace</groupId>
  <artifactId>{name}</artifactId>
  <version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = """
    <dependency>
      <groupId>{}</groupId>
      <artifactId>{}</artifactId>
      <version>{}</version>
    </dependency>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jars:
    """The jars of artifacts `GROUP:NAME:VERSION`, with everything that they depend on."""

    name: str
    """The name of their folder in the cache. It includes a version."""
    title: str
    """Of the server, in errors."""
    artifacts: tuple[str, ...]

    def classpath(self) -> str:
        """As Java's option `-cp` takes it. Downloads the jars if they are missing."""
        return f"{self.folder()}/*"

    def folder(self) -> Path:
        """The folder of the jars. RuntimeError if Java or Maven is missing, or a download fails."""
        java(self.title)
        cache = cache_folder()
        folder = cache / self.name
        if folder.is_dir():
            return folder
        maven = shutil.which("mvn")
        if maven is None:
            raise RuntimeError(f"Maven (mvn) must be on PATH to download the {self.title}")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache) as work:
            fetched = self._fetch(maven, Path(work))
            try:
                fetched.rename(folder)
            except OSError:
                # Another process was faster. The folder is complete: it is renamed last.
                if not folder.is_dir():
                    raise
        return folder

    def _fetch(self, maven: str, work: Path) -> Path:
        listed = "".join(_DEPENDENCY.format(*each.split(":")) for each in self.artifacts)
        (work / "pom.xml").write_text(_POM.format(name=self.name, dependencies=listed))
        command = [
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            "-DoutputDirectory=jars",
        ]
        done = subprocess.run(
            [maven, "-q", "-B", *command], cwd=work, capture_output=True, text=True, check=False
        )
        _, name, version = self.artifacts[0].split(":")
        if done.returncode or not (work / "jars" / f"{name}-{version}.jar").exists():
            output = (done.stdout or done.stderr)[:500]
            raise RuntimeError(f"cannot download the {self.title}: {output}")
        return work / "jars"


def java(title: str) -> str:
    """The program `java` for a server; RuntimeError if there is none."""
    found = find_java()
    if found is None:
        raise RuntimeError(f"the {title} needs Java 17 on PATH")
    return found
